package backup_test

import (
	"context"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// counted counts listings of all backups (by their results of full snapshots) and of restore tests.
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

// A listing of all backups costs seven requests.
func TestPruneUsesARecentListing(t *testing.T) {
	in := &counted{Store: memory.New()}
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(backup.Facts) bool { return in.tests.Load() > in.kept.Load() }, "a look at the tests without a listing of all")
	s.end(t)
}

// A clock that was wrong for two minutes would cause almost all backups to be deleted.
func TestNothingIsDeletedAfterTheClockJumped(t *testing.T) {
	s := newSubject(t, archive.Verified)
	var jump atomic.Int64
	s.now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
	s.Backups = s.another(t, &format.Keys{})
	s.beginUntil(t, func(f backup.Facts) bool { return !f.Listed.At.IsZero() && f.Undone == nil }, "the clock is watched")
	jump.Store(int64(8 * time.Hour))
	_, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool {
		return f.Undone != nil && strings.Contains(f.Undone.Message, "this machine's clock jumped by 8h0m0s")
	}, "it is reported")
	s.end(t)
}
