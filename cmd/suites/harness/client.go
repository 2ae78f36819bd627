package harness

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd returns a client of the embedded etcd.
func (p *Pod) Etcd() *clientv3.Client {
	p.T.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{p.Endpoint()}, TLS: p.Identity, DialTimeout: Patience, Logger: zap.NewNop(),
	})
	require.NoError(p.T, err)
	p.T.Cleanup(func() { _ = client.Close() }) // a test may have closed it
	return client
}

// Put writes a key and returns when etcd has acknowledged it.
func (p *Pod) Put(key, value string) {
	p.T.Helper()
	require.NoError(p.T, p.TryPut(key, value, Patience))
}

// TryPut returns nil when etcd has acknowledged the key.
func (p *Pod) TryPut(key, value string, within time.Duration) error {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := p.Etcd().Put(ctx, key, value)
	return err
}

// Get returns the value of a key that is there.
func (p *Pod) Get(key string) string {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	reply, err := p.Etcd().Get(ctx, key)
	require.NoError(p.T, err)
	require.Len(p.T, reply.Kvs, 1, "the key %q is there", key)
	return string(reply.Kvs[0].Value)
}
