package harness

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// A call to a hanging member must fail with an error that names the call, instead of blocking the suite until its
// 20-minute limit.
func TestClient_callWithoutDeadlineEnds(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections but never responds
	require.NoError(t, err)
	defer silent.Close()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{silent.Addr().String()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(limitCalls(50 * time.Millisecond))},
	})
	require.NoError(t, err)
	defer client.Close() // nothing was sent, so a close error is harmless
	for method, call := range map[string]func() error{
		"KV/Put":   func() error { _, err := client.Put(t.Context(), "key", "value"); return err },
		"KV/Range": func() error { _, err := client.Get(t.Context(), "key"); return err }, // etcd's client retries reads
	} {
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		err, _ := Receive(t, "the call returns an error", ended)
		require.EqualError(t, err, "/etcdserverpb."+method+": no response within 50ms")
	}
}
