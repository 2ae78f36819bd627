package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"etcd-wrapper/backup/store"
)

// progress is how much has to move within the patience: a server that sends a byte now and then hangs, too.
const progress = 16 << 10 // bytes

var errStalled = errors.New("nothing moved")

const (
	// small is an object that a server has nothing to put together for, in bytes.
	small = 64 << 10
	// brief is the patience for creating one.
	brief = 10 * time.Second
)

type wholeKey struct{}

// Whole returns a context for the request that creates an object of so many bytes at once. A small one that hangs is given up soon, and
// may be asked for again: an object is created only if there is none, so the one that hung does no harm.
func Whole(ctx context.Context, size int) context.Context {
	if size > small {
		return ctx
	}
	return context.WithValue(ctx, wholeKey{}, true)
}

// patienceFor is how long a request may not get on.
func (i *impatient) patienceFor(ctx context.Context) time.Duration {
	if ctx.Value(wholeKey{}) == nil {
		return i.patience
	}
	return min(i.patience, brief)
}

// impatient ends a request when neither its body, nor the answer, nor the answer's body got on for as long as its patience.
// Its errors are those of the caller's context, or ErrUnavailable.
type impatient struct {
	next     http.RoundTripper
	patience time.Duration
}

// RoundTrip is http.RoundTripper's.
func (i *impatient) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := noted(request.Context()); err != nil {
		closeBody(request)
		return nil, err
	}
	watch := newWatch(request.Context(), i.patienceFor(request.Context()))
	response, err := i.next.RoundTrip(watch.over(request))
	if err != nil {
		defer watch.end()
		err = watch.explain(err)
		noteFailure(request.Context(), err)
		return nil, err
	}
	watch.count(progress)
	watch.pause()
	noteAnswer(request.Context(), response)
	response.Body = &answerBody{ReadCloser: response.Body, watch: watch}
	return response, nil
}

// closeBody is what a RoundTripper owes a request that it does not send.
func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// watch cancels a request that does not get on. Its clock runs only while the store is waited for: not while whoever reads
// an answer's body does something else between two reads.
type watch struct {
	caller   context.Context
	own      context.Context
	cancel   context.CancelCauseFunc
	patience time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	started time.Time     // when the clock was last set going
	left    time.Duration // of the patience, at that time
	moved   int           // bytes since the patience began anew
	running bool
}

func newWatch(caller context.Context, patience time.Duration) *watch {
	w := &watch{caller: caller, patience: patience, started: time.Now(), left: patience, running: true}
	w.own, w.cancel = context.WithCancelCause(caller)
	w.timer = time.AfterFunc(patience, func() { w.cancel(errStalled) })
	return w
}

// over returns the request under the watch's context, with a body that tells the watch.
func (w *watch) over(request *http.Request) *http.Request {
	request = request.Clone(w.own)
	if request.Body == nil || request.Body == http.NoBody {
		return request
	}
	request.Body = &requestBody{ReadCloser: request.Body, watch: w}
	if again := request.GetBody; again != nil {
		request.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			return &requestBody{ReadCloser: body, watch: w}, err
		}
	}
	return request
}

func (w *watch) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started, w.running = time.Now(), true
	w.timer.Reset(w.left)
}

func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.left -= time.Since(w.started)
	w.running = false
}

// count notes that n bytes moved. Enough of them begin the patience anew.
func (w *watch) count(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moved += n; w.moved < progress || !w.running {
		return
	}
	w.moved, w.left, w.started = 0, w.patience, time.Now()
	w.timer.Reset(w.patience)
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.running = false
	w.cancel(context.Canceled)
}

// explain makes an error of the connection ours.
func (w *watch) explain(err error) error {
	switch {
	case w.caller.Err() != nil:
		return context.Cause(w.caller)
	case errors.Is(context.Cause(w.own), errStalled):
		return &store.Unavailable{Cause: fmt.Errorf("%w for %s", errStalled, w.patience)}
	default:
		return &store.Unavailable{Cause: describe(err)}
	}
}

// requestBody tells the watch how fast it is sent.
type requestBody struct {
	io.ReadCloser
	watch *watch
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watch.count(n)
	return n, err
}

// answerBody tells the watch how fast it arrives.
type answerBody struct {
	io.ReadCloser
	watch *watch
}

func (b *answerBody) Read(p []byte) (int, error) {
	b.watch.resume()
	n, err := b.ReadCloser.Read(p)
	b.watch.count(n)
	b.watch.pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.watch.explain(err)
	}
	return n, err
}

func (b *answerBody) Close() error {
	defer b.watch.end()
	return b.ReadCloser.Close()
}
