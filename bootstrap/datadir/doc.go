// Package datadir reads the data directory of an etcd member that does not run, and judges it. It owns the knowledge of
// what etcd keeps there: the segments of the log, the snapshots, the database, and what each says of the others.
//
// Two rooms call it. Recovery has a Validator decide whether etcd may open the directory: it runs Verify in a process of its
// own, and remembers what is wrong until the data change. A validation only reads; what becomes of data that are broken is for
// recovery, which also reads the Position. The embedded etcd (member) calls Await, Look and Tighten right before it opens the
// directory, even if a validation has passed; Inspect and ClusterVersions judge what that one look has found.
//
// A survey lists the files. Log, segment, damage and database read one kind of file each and are guarded against whatever is
// in it. The judgements go from there to an error: structure and verify for Verify, inspect for Inspect; refusal has their
// sentences. Nothing here changes data, except that Inspect may move an uninitialized member out of the way, and that
// Tighten changes permissions.
package datadir

import (
	"fmt"
	"runtime/debug"
)

// recordsPerLook is how many revisions or records of the log are read between two looks at the context.
const recordsPerLook = 1024

// guarded runs a check and turns a panic into an error. Memory faults are included: files are mapped, a bad offset in
// them may point anywhere, and a disk that can't be read shows that way, too.
func guarded(check func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("reading it panicked: %v", cause)
		}
	}()
	return check()
}
