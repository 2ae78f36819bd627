package backup_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
)

// littered is a store in which uploads that were cut off have left something.
type littered struct {
	store.Store
	left atomic.Int32
}

func (l *littered) Sweep(context.Context) (removed int, err error) {
	return int(l.left.Swap(0)), nil
}

func TestTheRemainsOfUploadsThatWereCutOffAreRemovedAtTheBeginning(t *testing.T) {
	in := &littered{Store: memory.New()}
	in.left.Store(3)
	s := newSubjectIn(t, in, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(backup.Facts) bool { return in.left.Load() == 0 }, "they are removed")
	require.NoError(t, s.End(soon(t)))
}
