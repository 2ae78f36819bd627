package harness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Etcd returns a client for the embedded etcd.
func (p *Pod) Etcd() *clientv3.Client {
	p.T.Helper()
	return NewClient(p.T, clientv3.Config{Endpoints: []string{p.Endpoint()}, TLS: p.Identity})
}

// NewClient returns a client that is closed when the test ends. Calls without a context deadline fail after Patience.
func NewClient(t *testing.T, config clientv3.Config) *clientv3.Client {
	t.Helper()
	config.DialTimeout, config.Logger = Patience, zap.NewNop()
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(limitCalls(Patience)))
	client, err := clientv3.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() }) // a test may have closed the client
	return client
}

// limitCalls returns an interceptor that cancels calls without a context deadline after the given time, as measured
// by a Watch. The error names the call, and etcd's client does not retry it.
func limitCalls(within time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); has {
			return invoke(ctx, method, request, reply, conn, options...)
		}
		limited, cancel := withTimeout(ctx, within)
		defer cancel()
		err := invoke(limited, method, request, reply, conn, options...)
		if ctx.Err() == nil && limited.Err() != nil {
			return fmt.Errorf("%s: %w", method, context.Cause(limited))
		}
		return err
	}
}

// Put writes a key and returns once etcd has acknowledged the write.
func (p *Pod) Put(key, value string) {
	p.T.Helper()
	require.NoError(p.T, p.TryPut(key, value, Patience))
}

// TryPut writes a key and returns nil once etcd has acknowledged the write, or an error if it has not done so in time.
func (p *Pod) TryPut(key, value string, within time.Duration) error {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := p.Etcd().Put(ctx, key, value)
	return err
}

// Revision returns etcd's current revision.
func (p *Pod) Revision() int64 {
	p.T.Helper()
	return p.read("any").Header.Revision
}

// Get returns the value of a key, which must exist.
func (p *Pod) Get(key string) string {
	p.T.Helper()
	reply := p.read(key)
	require.Len(p.T, reply.Kvs, 1, "the key %q must exist", key)
	return string(reply.Kvs[0].Value)
}

func (p *Pod) read(key string) *clientv3.GetResponse {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	reply, err := p.Etcd().Get(ctx, key)
	require.NoError(p.T, err)
	return reply
}

// LatencyClient writes one key after another and measures the longest gap between acknowledged writes. Its fields may
// be read once it has stopped.
type LatencyClient struct {
	Prefix     string // prefix of the keys
	Acked      int
	Longest    time.Duration // longest gap between acknowledged writes
	LongestEnd time.Time     // end of the longest gap
	Failed     []error

	client *clientv3.Client
	first  chan struct{} // closed after the first acknowledged write
}

// StartLatencyClients starts count LatencyClients, waits until each of them has written a key, and returns a function
// that stops them.
func StartLatencyClients(t *testing.T, count int, client func() *clientv3.Client) (end func() []*LatencyClient) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all []*LatencyClient
	var working sync.WaitGroup
	for i := range count {
		w := &LatencyClient{client: client(), Prefix: fmt.Sprintf("/registry/writer-%d/", i), first: make(chan struct{})}
		all = append(all, w)
		working.Go(func() { w.run(ctx) })
	}
	for _, w := range all {
		Receive(t, "each writer has written a key", w.first)
	}
	return func() []*LatencyClient {
		cancel()
		working.Wait()
		return all
	}
}

// run writes keys until ctx is done, and retries failed writes. Because the outcome of a failed write is unknown, a
// retry may find that the key already exists.
func (w *LatencyClient) run(ctx context.Context) {
	var last time.Time
	for ctx.Err() == nil {
		_, err := w.client.Put(ctx, fmt.Sprintf("%s%06d", w.Prefix, w.Acked), fmt.Sprint(w.Acked))
		if err != nil {
			if ctx.Err() == nil {
				w.Failed = append(w.Failed, fmt.Errorf("at %s: %w", time.Now().UTC().Format(time.StampMilli), err))
			}
			continue
		}
		if w.Acked++; w.Acked == 1 {
			close(w.first)
		} else if gap := time.Since(last); gap > w.Longest {
			w.Longest, w.LongestEnd = gap, time.Now()
		}
		last = time.Now()
	}
}

// Longest returns the LatencyClient with the longest gap between acknowledged writes.
func Longest(writers []*LatencyClient) *LatencyClient {
	return slices.MaxFunc(writers, func(a, b *LatencyClient) int { return int(a.Longest - b.Longest) })
}
