package backups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/readiness/status"
)

// backendFunc is a Backend whose Now method calls the function, and whose running snapshot is half uploaded.
type backendFunc func(context.Context) (archive.Full, error)

func (f backendFunc) Now(ctx context.Context) (archive.Full, error) { return f(ctx) }

func (backendFunc) Published() *facts.Backups {
	return &facts.Backups{RunningFullSnapshot: &facts.SnapshotProgress{SentBytes: 5, TotalBytes: 10}}
}

// startServer starts a server for the routes and returns a client for it.
func startServer(t *testing.T, flags Flags, backend Backend) Client {
	mux := http.NewServeMux()
	for pattern, handler := range Routes(flags, backend, zerolog.Nop()) {
		mux.Handle(pattern, handler)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return clientOf(server)
}

func TestClient_Flags(t *testing.T) {
	want := Flags{Store: "s3://bucket/prefix?endpoint=http://a:1", Keep: "points=1h", Identities: "/keys/age", VolumeDir: "/v"}
	flags, err := startServer(t, want, backendFunc(func(context.Context) (archive.Full, error) { panic("GET /backup must not take a snapshot") })).Flags(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, flags)
}

func TestClient_Now(t *testing.T) {
	made := Backup{Name: "0000000000000000042-20261122T010203Z", Revision: 42, Time: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC), Bytes: 7}
	seen := make(chan string, 100)
	client := startServer(t, Flags{}, backendFunc(func(context.Context) (archive.Full, error) {
		assert.Equal(t, "5 of 10", <-seen, "the client receives progress before the snapshot is complete")
		return archive.Full{Revision: made.Revision, Time: made.Time, Data: format.Body{Bytes: made.Bytes}}, nil
	}))
	got, err := client.Now(t.Context(), func(done, total int64) { seen <- fmt.Sprint(done, " of ", total) })
	require.NoError(t, err)
	assert.Equal(t, made, got)
}

func TestClient_NowFails(t *testing.T) {
	_, err := startServer(t, Flags{}, backendFunc(func(context.Context) (archive.Full, error) {
		return archive.Full{}, errors.New("s3://bucket: permission\x1b denied")
	})).Now(t.Context(), func(int64, int64) {})
	assert.EqualError(t, err, `s3://bucket: permission\x1b denied`)
}

// The goroutine that waits for the snapshot must exit when the client disconnects.
func TestServe_clientDisconnects(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{})
	client := startServer(t, Flags{}, backendFunc(func(ctx context.Context) (archive.Full, error) {
		defer close(done)
		leave()
		<-ctx.Done()
		return archive.Full{}, ctx.Err()
	}))
	_, err := client.Now(ctx, func(int64, int64) {})
	require.Error(t, err)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the handler did not return after the client disconnected")
	}
}

// The handler must return if a line cannot be sent, because the client may have stopped reading.
func TestServe_clientStopsReading(t *testing.T) {
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/backup", nil), backendFunc(func(ctx context.Context) (archive.Full, error) {
			<-ctx.Done()
			return archive.Full{}, ctx.Err()
		})) // the recorder does not support write deadlines, so sendLine fails
	}()
	select {
	case <-served:
	case <-time.After(30 * time.Second):
		t.Fatal("the handler did not return after a line could not be sent")
	}
}

func TestClient_noBackups(t *testing.T) {
	client := startServer(t, Flags{}, nil)
	_, err := client.Flags(t.Context())
	require.ErrorIs(t, err, ErrNoBackups)
	_, err = client.Now(t.Context(), func(int64, int64) {})
	require.ErrorIs(t, err, ErrNoBackups)
}

func TestClient_noAnswer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	client := clientOf(server)
	_, err := client.Flags(t.Context())
	assert.ErrorContains(t, err, "HTTP status 404")
	server.Close()
	_, err = client.Flags(t.Context())
	assert.ErrorIs(t, err, status.ErrNoAnswer)
	_, err = client.Now(t.Context(), func(int64, int64) {})
	assert.ErrorIs(t, err, status.ErrNoAnswer)
}

func TestClient_truncatedAnswer(t *testing.T) {
	for _, text := range []string{"", "{\"uploaded\":1}\n", "garbage\n"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }))
		t.Cleanup(server.Close)
		_, err := clientOf(server).Now(t.Context(), func(int64, int64) {})
		assert.ErrorContains(t, err, "etcd-wrapper on port", text)
	}
}

func TestClient_endlessAnswer(t *testing.T) {
	sent := make(chan int, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		written := 0
		for err := error(nil); err == nil && written < 64<<20; written += 1 << 20 {
			_, err = w.Write(bytes.Repeat([]byte(" "), 1<<20))
		}
		sent <- written
	}))
	t.Cleanup(server.Close)
	_, err := clientOf(server).Flags(t.Context())
	require.ErrorContains(t, err, "cannot read the response")
	require.Less(t, <-sent, 64<<20)
}

// The client must time out if the server sends nothing after the response headers, as a hung wrapper or an unrelated
// program might.
func TestClient_silentServer(t *testing.T) {
	before := lineTimeout
	lineTimeout = 100 * time.Millisecond
	t.Cleanup(func() { lineTimeout = before })
	for _, code := range []int{http.StatusOK, http.StatusTeapot} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(code)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		t.Cleanup(server.Close)
		_, err := clientOf(server).Flags(t.Context())
		require.Error(t, err)
		_, err = clientOf(server).Now(t.Context(), func(int64, int64) {})
		require.Error(t, err)
	}
}

func TestRoutes_loopbackOnly(t *testing.T) {
	routes := Routes(Flags{Store: "file:///b"}, backendFunc(func(context.Context) (archive.Full, error) {
		panic("a remote client must not be able to take a snapshot")
	}), zerolog.Nop())
	for _, pattern := range []string{"GET /backup", "POST /backup"} {
		request := httptest.NewRequest(pattern[:len(pattern)-len(" /backup")], "/backup", nil)
		request.RemoteAddr = "10.0.0.7:1"
		reply := httptest.NewRecorder()
		routes[pattern].ServeHTTP(reply, request)
		assert.Equal(t, http.StatusForbidden, reply.Code)
		request.RemoteAddr = "127.0.0.1:1"
		request.Header.Set("Origin", "https://evil.example")
		reply = httptest.NewRecorder()
		routes[pattern].ServeHTTP(reply, request)
		assert.Equal(t, http.StatusForbidden, reply.Code)
		assert.NotContains(t, reply.Body.String(), "file:///b")
	}
}

func clientOf(server *httptest.Server) Client {
	return NewClient(uint16(server.Listener.Addr().(*net.TCPAddr).Port))
}

func TestClient_hostWithoutIPv4(t *testing.T) {
	listener, err := net.Listen("tcp6", "[::1]:0")
	require.NoError(t, err)
	mux := http.NewServeMux()
	for pattern, handler := range Routes(Flags{Store: "file:///b"}, backendFunc(nil), zerolog.Nop()) {
		mux.Handle(pattern, handler)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}}
	server.Start()
	t.Cleanup(server.Close)
	flags, err := clientOf(server).Flags(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "file:///b", flags.Store)
}
