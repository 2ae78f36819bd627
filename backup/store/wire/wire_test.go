package wire

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/cmd/suites/certificates"
)

func client(t *testing.T, caPath string) *http.Client {
	client, err := NewClient(caPath)
	require.NoError(t, err)
	return client
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestAServerThatDoesNotRespondIsUnavailable(t *testing.T) {
	done, sent := make(chan struct{}), 0
	target := serve(t, func(http.ResponseWriter, *http.Request) { <-done })
	t.Cleanup(func() { close(done) }) // unblocks the handler; must run before the server is closed, which waits for it
	c := &Client{HTTP: client(t, "")}
	detector := c.HTTP.Transport.(*stallDetector)
	next := detector.next
	detector.timeout, detector.next = 50*time.Millisecond, roundTripper(func(request *http.Request) (*http.Response, error) {
		sent++
		return next.RoundTrip(request)
	})
	c.Authorize = func(*http.Request) error { return nil }
	for i, body := range [][]byte{nil, make([]byte, PieceSize)} {
		_, err := c.Do(t.Context(), Request{Method: http.MethodPut, URL: target, Body: body}, http.StatusOK)
		assert.ErrorIs(t, err, store.ErrUnavailable)
		assert.ErrorContains(t, err, "no data was transferred for 50ms")
		assert.Equal(t, i+1, sent, "a stalled request must not be retried")
	}
}

func TestContextEnd_isNotUnavailable(t *testing.T) {
	target := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	require.NoError(t, err)
	_, err = client(t, "").Do(request)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, store.ErrUnavailable)
}

func TestABundleMustBeARegularFile(t *testing.T) {
	_, err := NewClient("/dev/zero")
	assert.EqualError(t, err, "cannot read CA bundle /dev/zero: not a regular file")
}

func TestConnectionErrors_hideResponse(t *testing.T) {
	for _, answer := range []string{"SECRET\r\n\r\n", "HTTP/1.1 200 OK\r\nSECRET\r\n\r\n", "HTTP/1.1 SECRET\r\n\r\n", ""} {
		target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, answer)
				_ = connection.Close()
			}
		})
		_, err := client(t, "").Get(target)
		assert.ErrorIs(t, err, store.ErrUnavailable)
		assert.NotContains(t, err.Error(), "SECRET")
	}
	_, err := client(t, "").Get("http://127.0.0.1:1")
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorContains(t, err, "connection refused")
}

func TestACABundleIsReadAgainWhenItChanges(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	path := certificates.NewAuthority(t, "stranger").Bundle()
	client := client(t, path)
	_, err := client.Get(server.URL)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "certificate")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.Remove(path))
	_, err = client.Get(server.URL)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "cannot read CA bundle "+path+": no such file or directory")
	require.NoError(t, os.WriteFile(path, append(block, '\n'), 0o600))
	response, err := client.Get(server.URL)
	require.NoError(t, err)
	Discard(response)
}

func TestResponsesBecomeErrors(t *testing.T) {
	codes := map[string]error{"Gone": store.ErrNotFound, "Busy": store.ErrUnavailable, "Late": store.ErrSkewed, "Nowhere": store.ErrNoBucket}
	for _, one := range []struct {
		response summary
		kind     error
		text     string
	}{
		{summary{status: 401}, store.ErrDenied, "HTTP status 401: permission denied: check the credentials and their permissions"},
		{summary{status: 403, code: "No"}, store.ErrDenied, "HTTP status 403 (No): permission denied: check the credentials and their permissions"},
		{summary{status: 403, skew: time.Hour + 3*time.Second}, store.ErrSkewed, "HTTP status 403: clock skew relative to the store of about 1h0m0s: correct this machine's clock"},
		{summary{status: 401, skew: -time.Hour}, store.ErrSkewed, "HTTP status 401: clock skew relative to the store of about 1h0m0s: correct this machine's clock"},
		{summary{status: 400, code: "Late"}, store.ErrSkewed, "HTTP status 400 (Late): clock skew relative to the store of about 0s: correct this machine's clock"},
		{summary{status: 404, code: "Nowhere"}, store.ErrNoBucket, "HTTP status 404 (Nowhere): bucket not found: create the bucket or correct --backup-store"},
		{summary{status: 404, code: "Other"}, ErrUnconfirmed, "HTTP status 404 (Other): object not found"},
		{summary{status: 404, code: "Gone"}, store.ErrNotFound, "HTTP status 404 (Gone): object not found"},
		{summary{status: 409, code: "Busy"}, store.ErrUnavailable, "store unavailable: HTTP status 409 (Busy)"},
		{summary{status: 408}, store.ErrUnavailable, "store unavailable: HTTP status 408"},
		{summary{status: 429, after: time.Second}, store.ErrUnavailable, "store unavailable: HTTP status 429"},
		{summary{status: 500}, store.ErrUnavailable, "store unavailable: HTTP status 500"},
		{summary{status: 503}, store.ErrUnavailable, "store unavailable: HTTP status 503"},
		{summary{status: 400, code: "a secret"}, nil, "HTTP status 400"},
		{summary{status: 501}, nil, "HTTP status 501"},
	} {
		err := one.response.toError(codes)
		assert.EqualError(t, err, one.text)
		if one.kind != nil {
			assert.ErrorIs(t, err, one.kind)
		}
		assert.Equal(t, errors.Is(one.kind, store.ErrUnavailable), errors.Is(err, store.ErrUnavailable))
		assert.Equal(t, one.response.after, store.RetryAfter(err))
	}
}

func TestRetryAfterIsASpanOrATime(t *testing.T) {
	assert.Equal(t, 7*time.Second, RetryAfter("7"))
	assert.InDelta(t, time.Minute, RetryAfter(time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)), float64(5*time.Second))
	for _, invalid := range []string{"", "-1", "soon", "Mon, 02 Jan 2006 15:04:05 GMT"} {
		assert.Zero(t, RetryAfter(invalid), invalid)
	}
	assert.Equal(t, time.Hour, RetryAfter("99999999999"))
}

func TestARequestIsRepeatedAFewTimes(t *testing.T) {
	for _, one := range []struct {
		status  int    // status of all responses before the successful one
		success int    // number of the request that succeeds
		want    int    // expected number of requests
		after   string // Retry-After header
		once    bool   // value of Request.Once
	}{{503, 3, 3, "", false}, {503, 9, 3, "", false}, {503, 9, 1, "60", false}, {400, 9, 1, "", false}, {429, 2, 2, "1", false}, {503, 9, 1, "", true}} {
		var asked atomic.Int32
		target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if int(asked.Add(1)) < one.success {
				w.Header().Set("Retry-After", one.after)
				w.WriteHeader(one.status)
			}
		})
		c := &Client{HTTP: client(t, ""), Authorize: func(*http.Request) error { return nil }}
		c.Reason = func(int, http.Header, []byte) string { return "" }
		response, err := c.Do(t.Context(), Request{Method: http.MethodGet, URL: target, Once: one.once}, 200)
		assert.Equal(t, one.success > one.want, err != nil, one)
		assert.EqualValues(t, one.want, asked.Load(), one)
		if err == nil {
			Discard(response)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the client must not follow a redirect") })
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	response, err := client(t, "").Get(target)
	require.NoError(t, err)
	assert.Equal(t, http.StatusTemporaryRedirect, response.StatusCode)
	Discard(response)
}

func TestARangeThatWasNotRequestedIsRejected(t *testing.T) {
	answer := func(contentRange string, length int64) *http.Response {
		return &http.Response{
			StatusCode: 206, ContentLength: length, Header: http.Header{"Content-Range": {contentRange}, "Etag": {"1"}},
			Body: io.NopCloser(strings.NewReader("0123456789")),
		}
	}
	for _, wrong := range []*http.Response{answer("bytes 0-9/10", 10), answer("", 10), answer("bytes 3-9/10", -1), answer("x", 10)} {
		_, err := bodyOf(wrong, 3, 7)
		assert.ErrorContains(t, err, "an unexpected range or no length")
	}
	body, err := bodyOf(answer("bytes 3-9/10", 7), 3, 7)
	require.NoError(t, err)
	all, err := io.ReadAll(body)
	assert.NoError(t, err)
	assert.Len(t, all, 7, "the body must end after the requested range")
	for want, span := range map[string][2]int64{"": {0, -1}, "bytes=5-": {5, -1}, "bytes=0-0": {0, 1}, "bytes=5-9": {5, 5}} {
		assert.Equal(t, want, rangeOf(span[0], span[1]))
	}
}

func TestReadPiece_endOfContent(t *testing.T) {
	buffer := new([PieceSize]byte)
	for _, length := range []int{0, 5, PieceSize, 2*PieceSize + 1} {
		content, total, last := io.LimitReader(zeros{}, int64(length)), 0, false
		for !last {
			piece, end, err := readPiece(content, buffer)
			require.NoError(t, err)
			assert.True(t, end || len(piece) == PieceSize)
			total, last = total+len(piece), end
		}
		assert.Equal(t, length, total)
	}
	_, _, err := readPiece(io.MultiReader(strings.NewReader("x"), &failing{}), buffer)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "an error from content must not be treated as the end")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, fmt.Errorf("gzip: %w", io.ErrUnexpectedEOF) }

const askedForProxy = "ETCD_WRAPPER_TEST_ASKED_FOR_PROXY"

// Run the test in a separate process, because a process reads the proxy environment variables only once.
func TestTheMetadataServerIsNeverProxied(t *testing.T) {
	if target := os.Getenv(askedForProxy); target != "" {
		request, err := http.NewRequest(http.MethodGet, target, nil)
		require.NoError(t, err)
		through, err := newTransport(nil).Proxy(request)
		require.NoError(t, err)
		fmt.Println("through", through)
		return
	}
	for target, want := range map[string]string{
		"http://169.254.169.254/token": "through <nil>", "http://store.example.org/": "through http://proxy.example.org:3128",
	} {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = []string{askedForProxy + "=" + target, "HTTP_PROXY=http://proxy.example.org:3128"}
		output, err := child.CombinedOutput()
		require.NoError(t, err, string(output))
		assert.Contains(t, string(output), want)
	}
}

// step is shorter than stallTimeout, so a server that takes one step per part is slow but not stalled.
const step = stallTimeout / 3

// slowServer waits for one step before it reads or sends each part.
type slowServer struct{ part int }

func (s slowServer) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{s.slowly(request.Context(), request.Body)}, make([]byte, s.part)); err != nil {
			return nil, err
		}
	}
	body := io.NopCloser(s.slowly(request.Context(), bytes.NewReader(make([]byte, 20*s.part))))
	return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
}

func (s slowServer) slowly(ctx context.Context, body io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(step):
			return body.Read(p[:min(len(p), s.part)])
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestStallDetector_slowTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for part, want := range map[int]error{progress / 2: nil, 1: store.ErrUnavailable} {
			start := time.Now()
			transport := &stallDetector{next: slowServer{part: part}, timeout: stallTimeout}
			upload, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://x", bytes.NewReader(make([]byte, 20*part)))
			require.NoError(t, err)
			response, err := transport.RoundTrip(upload)
			require.ErrorIs(t, err, want)
			assert.Equal(t, want == nil, time.Since(start) > 6*stallTimeout, "only progress extends the timeout")
			if err == nil {
				require.NoError(t, response.Body.Close())
			}
			download, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x", nil)
			require.NoError(t, err)
			response, err = transport.RoundTrip(download)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, response.Body)
			assert.ErrorIs(t, err, want)
			require.NoError(t, response.Body.Close())
		}
	})
}

func TestStallDetector_ignoresTimeOfReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := &stallDetector{next: slowServer{part: progress}, timeout: stallTimeout}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x", nil)
		require.NoError(t, err)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		for range 20 {
			<-time.After(10 * stallTimeout)
			_, err := response.Body.Read(make([]byte, progress))
			require.NoError(t, err)
		}
		require.NoError(t, response.Body.Close())
	})
}

func TestStallDetector_smallObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := roundTripper(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, request.Context().Err()
		})
		for size, want := range map[int]time.Duration{smallObject: smallStallTimeout, smallObject + 1: stallTimeout} {
			start := time.Now()
			transport := &stallDetector{next: hangs, timeout: stallTimeout}
			request, err := http.NewRequestWithContext(withObjectSize(t.Context(), size), http.MethodPut, "http://x", bytes.NewReader(make([]byte, size)))
			require.NoError(t, err)
			_, err = transport.RoundTrip(request) //nolint:bodyclose // there is no response
			require.ErrorIs(t, err, store.ErrUnavailable)
			assert.Equal(t, want, time.Since(start))
			assert.ErrorContains(t, err, want.String())
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
