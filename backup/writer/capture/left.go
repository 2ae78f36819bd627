package capture

import (
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/format/segment"
)

// Left reads the rows of a revision, or what compaction has left of them: whole tells that they are all there. Errors are Since's, but
// for the gap.
func (r *Reader) Left(revision int64) (rows []segment.Row, whole bool, err error) {
	var found Rows
	_, err = r.view(func(tx backend.UnsafeReader) {
		found.Compacted, _ = mvcc.UnsafeReadScheduledCompact(tx)
		found.read(tx, Request{From: revision, UpTo: revision, Limit: 1})
	})
	return found.Rows, found.Compacted < revision, err
}
