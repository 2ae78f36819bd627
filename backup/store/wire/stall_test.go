package wire

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
)

// step is a part of the patience.
const step = patience / 3

// slowServer takes a step for each part of a request that it reads, and of its answer that it sends.
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

func TestSlowIsNotStalledButTricklingIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for part, want := range map[int]error{progress / 2: nil, 1: store.ErrUnavailable} {
			start := time.Now()
			transport := &stallDetector{next: slowServer{part: part}, patience: patience}
			upload, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://x", bytes.NewReader(make([]byte, 20*part)))
			require.NoError(t, err)
			response, err := transport.RoundTrip(upload)
			require.ErrorIs(t, err, want)
			assert.Equal(t, want == nil, time.Since(start) > 6*patience, "both take their time")
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

func TestTheReadersTimeDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := &stallDetector{next: slowServer{part: progress}, patience: patience}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x", nil)
		require.NoError(t, err)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		for range 20 {
			<-time.After(10 * patience)
			_, err := response.Body.Read(make([]byte, progress))
			require.NoError(t, err)
		}
		require.NoError(t, response.Body.Close())
	})
}

func TestASmallObjectStallsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := roundTripper(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, request.Context().Err()
		})
		for size, want := range map[int]time.Duration{small: brief, small + 1: patience} {
			start := time.Now()
			transport := &stallDetector{next: hangs, patience: patience}
			request, err := http.NewRequestWithContext(withObjectSize(t.Context(), size), http.MethodPut, "http://x", bytes.NewReader(make([]byte, size)))
			require.NoError(t, err)
			_, err = transport.RoundTrip(request) //nolint:bodyclose // there is none
			require.ErrorIs(t, err, store.ErrUnavailable)
			assert.Equal(t, want, time.Since(start))
			assert.ErrorContains(t, err, want.String())
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
