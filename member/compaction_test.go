package member_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/internal/logtest"
	"etcd-wrapper/member"
)

func TestBeforeCompaction(t *testing.T) {
	t.Parallel()
	b := &bench{config: config(t, filepath.Join(t.TempDir(), "new.etcd")), log: &logtest.Lines{}}
	var client *clientv3.Client
	var seen []error
	b.Member = member.New(b.config, member.Options{
		Log: zerolog.New(b.log), Crash: func(error) {}, ClosePatience: patience, DataInUse: func() {},
		BeforeCompaction: func(ctx context.Context) {
			_, err := client.Get(ctx, "k", clientv3.WithRev(2))
			seen = append(seen, err)
			<-ctx.Done() // a reader without end
		},
	})
	require.NoError(t, b.Open(soon(t)))
	defer b.Close()
	client = b.client(t)
	for range 3 {
		_, err := client.Put(soon(t), "k", "v")
		require.NoError(t, err)
	}
	start := time.Now()
	_, err := client.Compact(soon(t), 4)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), patience/2, "it does not wait for a reader without end")
	require.Equal(t, []error{nil}, seen, "the revision was there to be read")
	_, err = client.Get(soon(t), "k", clientv3.WithRev(2))
	require.ErrorContains(t, err, "compacted")
}
