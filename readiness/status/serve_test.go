package status_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

// waitTimeout is the timeout for each wait in these tests.
const waitTimeout = 10 * time.Second

// A fakeRun is a Source whose document is set by the test.
type fakeRun struct {
	mu      sync.Mutex
	current status.Document
	changed chan struct{}
}

func newFakeRun() *fakeRun {
	return &fakeRun{current: status.Document{State: "Query"}, changed: make(chan struct{})}
}

func (r *fakeRun) source() status.Source {
	return status.Source{
		Document: func() status.Document { r.mu.Lock(); defer r.mu.Unlock(); return r.current },
		Changed:  func() <-chan struct{} { r.mu.Lock(); defer r.mu.Unlock(); return r.changed },
	}
}

// enter changes the state and notifies subscribers.
func (r *fakeRun) enter(state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.current.State, r.changed = state, make(chan struct{})
}

// check changes the quorum check without notifying subscribers.
func (r *fakeRun) check(verdict string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.Checks = []status.Check{{Name: "quorum", Status: verdict}}
}

// client opens a new connection for each request, because a reused connection could belong to the server of another
// test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// limit is the server's timeout for both requests and responses.
const limit = time.Second

// serve starts a server that uses limit as its timeout and runs until end is called.
func serve(t *testing.T, run *fakeRun) (address string, end context.CancelFunc) {
	lifetime, end := context.WithCancel(context.Background())
	server := httptest.NewUnstartedServer(status.Handler(run.source()))
	server.Config.ReadTimeout, server.Config.WriteTimeout = limit, limit
	server.Config.BaseContext = func(net.Listener) context.Context { return lifetime }
	server.Start()
	t.Cleanup(func() { end(); server.Close() })
	return server.URL, end
}

// events reads an open stream.
type events struct {
	t     *testing.T
	lines *bufio.Scanner
}

func watch(t *testing.T, address string) *events {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"?watch", nil)
	require.NoError(t, err)
	reply, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { reply.Body.Close() })
	require.Equal(t, "text/event-stream", reply.Header.Get("Content-Type"))
	return &events{t, bufio.NewScanner(reply.Body)}
}

// next returns the document of the next event, or false at the end of the stream.
func (e *events) next() (document status.Document, ok bool) {
	for e.lines.Scan() {
		if data, found := strings.CutPrefix(e.lines.Text(), "data: "); found {
			require.NoError(e.t, json.Unmarshal([]byte(data), &document))
			return document, true
		}
	}
	return document, false
}

func TestStreamHasEveryChangeAndOutlivesTheServersTimeouts(t *testing.T) {
	run := newFakeRun()
	address, _ := serve(t, run)
	stream := watch(t, address)
	start := time.Now()
	for i, state := range []string{"Query", "Trigger", "Wait", "Query", "FetchConfig", "StartEtcd", "Serving"} {
		if i > 0 {
			run.enter(state)
		}
		document, ok := stream.next()
		require.True(t, ok)
		require.Equal(t, state, document.State)
	}
	for i := 0; time.Since(start) <= 2*limit; i++ {
		verdict := fmt.Sprint("failed ", i)
		run.check(verdict)
		document, ok := stream.next()
		require.True(t, ok)
		require.Equal(t, verdict, document.Checks[0].Status)
	}
}

func TestStreamSendsTheLastChangeAndEndsWithTheServer(t *testing.T) {
	run := newFakeRun()
	address, end := serve(t, run)
	stream := watch(t, address)
	_, ok := stream.next()
	require.True(t, ok)
	run.enter("Terminated")
	end()
	document, ok := stream.next()
	require.True(t, ok)
	require.Equal(t, "Terminated", document.State)
	_, ok = stream.next()
	require.False(t, ok)
}

// streamFrom opens a stream from a loopback address and returns the HTTP status of the response.
func streamFrom(t *testing.T, from, address string) int {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: waitTimeout}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	reply, err := (&http.Client{Transport: transport}).Get(address + "?watch")
	if err != nil && strings.Contains(err.Error(), "cannot assign requested address") {
		t.Skip("this system has only one loopback address")
	}
	require.NoError(t, err)
	t.Cleanup(func() { reply.Body.Close() })
	return reply.StatusCode
}

// A recorder is a response writer that accepts write deadlines.
type recorder struct{ httptest.ResponseRecorder }

func (*recorder) SetWriteDeadline(time.Time) error { return nil }

func TestStreamHasHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &recorder{*httptest.NewRecorder()}
		request := httptest.NewRequest("GET", "/lifecycle?watch", nil)
		built := 0
		source := newFakeRun().source()
		document := source.Document
		source.Document = func() status.Document { built++; return document() }
		handler := status.Handler(source)
		time.Sleep(time.Minute)
		require.Zero(t, built, "no documents are built without a client")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		handler.ServeHTTP(client, request.WithContext(ctx))
		require.Equal(t, 1, strings.Count(client.Body.String(), "data: "), "an unchanged document is sent once")
		beats := strings.Count(client.Body.String(), ": heartbeat\n\n")
		require.GreaterOrEqual(t, beats, 10, "there must be a heartbeat at least every 6 s, because the page times out after 12 s")
	})
}

// A small change must not make the server send the whole document to each client.
func TestStream_compressesUnchangedParts(t *testing.T) {
	run := newFakeRun()
	for i := range 90 {
		run.current.Timeline = append(run.current.Timeline, status.TimelineEvent{Kind: "problem", Message: fmt.Sprint("event ", i)})
	}
	document, err := json.Marshal(run.current)
	require.NoError(t, err)
	address, end := serve(t, run)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"?watch", nil)
	require.NoError(t, err)
	request.Header.Set("Accept-Encoding", "gzip")
	reply, err := client.Do(request)
	require.NoError(t, err)
	defer reply.Body.Close()
	require.Equal(t, "gzip", reply.Header.Get("Content-Encoding"))
	compressed := &counter{from: reply.Body}
	plain, err := gzip.NewReader(compressed)
	require.NoError(t, err)
	stream := &events{t, bufio.NewScanner(plain)}
	_, ok := stream.next()
	require.True(t, ok)
	first := compressed.bytes
	run.enter("Wait")
	next, ok := stream.next()
	require.True(t, ok)
	require.Equal(t, "Wait", next.State)
	require.Less(t, compressed.bytes-first, len(document)/20, "size of the change; the document has %d bytes", len(document))
	end()
}

// A counter counts the bytes that are read through it.
type counter struct {
	from  io.Reader
	bytes int
}

func (c *counter) Read(into []byte) (n int, err error) {
	n, err = c.from.Read(into)
	c.bytes += n
	return n, err
}

func TestStreamsAreBounded(t *testing.T) {
	address, _ := serve(t, newFakeRun())
	for other := range 4 {
		for range 8 {
			require.Equal(t, http.StatusOK, streamFrom(t, fmt.Sprintf("127.0.0.%d", 2+other), address))
		}
		if other == 0 {
			require.Equal(t, http.StatusServiceUnavailable, streamFrom(t, "127.0.0.2", address), "one client cannot open all streams")
		}
	}
	require.Equal(t, http.StatusServiceUnavailable, streamFrom(t, "127.0.0.9", address))
	reply, err := client.Get(address)
	require.NoError(t, err)
	defer reply.Body.Close()
	require.Equal(t, http.StatusOK, reply.StatusCode, "the limit does not apply to single documents")
}

func TestEndedStreamDoesNotCount(t *testing.T) {
	address, _ := serve(t, newFakeRun())
	ctx, end := context.WithCancel(t.Context())
	for range 8 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"?watch", nil)
		require.NoError(t, err)
		reply, err := client.Do(request)
		require.NoError(t, err)
		defer reply.Body.Close()
		require.Equal(t, http.StatusOK, reply.StatusCode)
	}
	end()
	require.Eventually(t, func() bool {
		reply, err := client.Get(address + "?watch")
		require.NoError(t, err)
		defer reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	}, waitTimeout, 50*time.Millisecond)
}

func TestControlCharactersAreEscaped(t *testing.T) {
	evil, shown := documentOf("x509: \x1b[2J\u009b31m"), documentOf(`x509: \x1b[2J\u009b31m`)
	run := newFakeRun()
	run.current = evil
	mux := http.NewServeMux()
	mux.Handle("GET /lifecycle", status.Handler(run.source()))
	escaping := httptest.NewServer(mux)
	defer escaping.Close()
	raw := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(run.current)
	}))
	defer raw.Close()
	for _, server := range []*httptest.Server{escaping, raw} {
		document, err := status.NewClient(portOf(server)).Fetch(t.Context())
		require.NoError(t, err)
		require.Equal(t, shown, document)
	}
	require.Equal(t, documentOf("x509: \x1b[2J\u009b31m"), evil, "the document of the source is not modified")
	for path, kind := range map[string]string{"/lifecycle": "application/json", "/lifecycle?watch": "text/event-stream"} {
		reply, err := client.Get(escaping.URL + path)
		require.NoError(t, err)
		defer reply.Body.Close()
		require.Equal(t, kind, reply.Header.Get("Content-Type"))
		text, last := "", ""
		for lines := bufio.NewScanner(reply.Body); last != "}" && !strings.HasPrefix(last, "data: ") && lines.Scan(); {
			last = lines.Text()
			text += last
		}
		require.Contains(t, text, `x509: \\x1b[2J`)
		require.NotContains(t, text, "\u009b")
		require.NotContains(t, text, "u001b")
	}
}

// documentOf returns a document in which every field is set and all strings are the same.
func documentOf(text string) (document status.Document) {
	var fill func(reflect.Value)
	fill = func(into reflect.Value) {
		switch into.Kind() {
		case reflect.String:
			into.SetString(text)
		case reflect.Pointer:
			into.Set(reflect.New(into.Type().Elem()))
			fill(into.Elem())
		case reflect.Slice:
			into.Set(reflect.MakeSlice(into.Type(), 1, 1))
			fill(into.Index(0))
		case reflect.Struct:
			for i := range into.NumField() {
				if field := into.Field(i); field.CanSet() {
					fill(field)
				}
			}
		}
	}
	fill(reflect.ValueOf(&document).Elem())
	return document
}
