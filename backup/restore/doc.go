// Package restore makes a database file of a full and the rows that followed it, without an etcd: the full is written as
// it streams in, the rows are inserted behind those that it has, and the small buckets are replaced by what they had
// become. The result is what the database of an etcd was at that revision, save for rows that a compaction has deleted
// since the full: these are there again, and the compaction is scheduled, as if etcd had been killed before it began.
package restore

import (
	"fmt"
	"runtime/debug"
)

// guarded turns a panic into an error, memory faults included: bbolt maps the file, and a page that was made up may point
// anywhere.
func guarded(work func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: its database cannot be read: %v", ErrDamaged, cause)
		}
	}()
	return work()
}
