package backup_test

import (
	"context"
	"sync/atomic"
	"testing"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// littered is a store in which uploads that were cut off have left something.
type littered struct {
	store.Store
	left atomic.Int32
}

func (l *littered) Sweep(context.Context) (removed int, err error) {
	return int(l.left.Swap(0)), nil
}

func TestRemainsOfInterruptedUploadsAreRemoved(t *testing.T) {
	in := &littered{Store: memory.New()}
	in.left.Store(3)
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(backup.Facts) bool { return in.left.Load() == 0 }, "they are removed")
	s.end(t)
}
