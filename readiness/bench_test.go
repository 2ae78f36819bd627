package readiness

import (
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// nowhere takes a reply and forgets it.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header       { return n.header }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}

func BenchmarkReadyz(b *testing.B) {
	for name, target := range map[string]string{"ok": "/readyz", "verbose": "/readyz?verbose"} {
		b.Run(name, func(b *testing.B) {
			m := found(func(r *Report) { r.LastRead = r.LastRead.Add(time.Hour) })
			h := routes(Options{Phase: serving}, m)
			r, err := http.NewRequest(http.MethodGet, target, nil)
			require.NoError(b, err)
			w := nowhere{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkReadyzSocket asks over loopback, one request after the other, and reports the 99th percentile.
func BenchmarkReadyzSocket(b *testing.B) {
	s := served(b, Options{Log: zerolog.Nop()}, found(func(r *Report) { r.LastRead = r.LastRead.Add(time.Hour) }))
	s.UsePlain()
	c := dial(b, s)
	require.NoError(b, c.SetDeadline(time.Now().Add(time.Minute)))
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: pod\r\n\r\n")
		require.NoError(b, err)
		res, _ := c.receive()
		require.Equal(b, 200, res.StatusCode)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
