package backup_test

import (
	"context"
	"iter"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
)

// counted counts listings: of all that is kept, which has the results of fulls, and of what restore tests showed.
type counted struct {
	*memory.Store
	kept, tests atomic.Int64
}

func (c *counted) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	switch {
	case strings.HasSuffix(prefix, "/verified/"):
		c.kept.Add(1)
	case strings.HasSuffix(prefix, "/tested/"):
		c.tests.Add(1)
	}
	return c.Store.List(ctx, prefix, after)
}

// A listing of all that is kept costs seven requests. What may go is decided by the one that was just made.
func TestWhatWasJustListedIsNotListedAgainToLetGoWhatNeedNotBeKept(t *testing.T) {
	in := &counted{Store: memory.New()}
	s := newSubjectIn(t, in, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(backup.Facts) bool { return in.tests.Load() > in.kept.Load() }, "a look at the tests without a listing of all")
	require.NoError(t, s.End(soon(t)))
}
