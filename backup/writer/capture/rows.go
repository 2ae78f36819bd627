package capture

import (
	"bytes"
	"math"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// Request is what a capture is to read.
type Request struct {
	From    int64 // the first revision
	UpTo    int64 // the last one; etcd must have answered with it before, then all of its rows are there
	Beyond  bool  // whether rows are read as well that came behind UpTo before the transaction began
	Limit   int   // bytes of rows after which the capture ends with the revision that it is at
	Buckets bool  // whether the small buckets are read as well; only with Beyond, and if the limit isn't reached
	Left    bool  // whether what compaction has left of the rows will do
}

// Rows is what one read transaction saw.
type Rows struct {
	Rows      []format.Row     // in order
	Bytes     int              // of the rows
	End       int64            // the last revision with rows; From-1 if there are none
	More      bool             // the limit ended it before UpTo
	Compacted int64            // the revision that etcd has compacted up to, or is about to; 0 if it never did
	Buckets   []*format.Bucket // all small ones, those without content included; none unless they were asked for and read
	Held      time.Duration    // how long the transaction was open
}

// The rows of so many revisions are looked up at once. They cost 48 bytes each until they are copied, and a look-up under
// a microsecond.
const (
	stride        = 256
	longestStride = 1 << 16 // over revisions that have no rows, which a bump of the revision leaves behind
)

// Since reads the rows of a range of revisions, whole revisions only. The error is a *GapError if compaction has passed the
// first of them, and ErrClosed if etcd closed its database meanwhile.
func (r *Reader) Since(request Request) (Rows, error) {
	rows := Rows{End: request.From - 1}
	var gap error
	held, err := r.view(func(tx backend.UnsafeReader) {
		rows.Compacted, _ = mvcc.UnsafeReadScheduledCompact(tx)
		if rows.Compacted >= request.From && !request.Left {
			gap = &GapError{From: request.From, Compacted: rows.Compacted}
			return
		}
		rows.read(tx, request)
		for _, bucket := range small {
			if request.Beyond && request.Buckets && !rows.More {
				rows.Buckets = append(rows.Buckets, readBucket(tx, bucket))
			}
		}
	})
	if err != nil {
		return Rows{}, err
	}
	rows.Held = held
	return rows, gap
}

// read takes stride by stride. A limit on the number of rows would leave rows out: etcd then prefers those that wait for
// the next commit to older ones.
func (r *Rows) read(tx backend.UnsafeReader, request Request) {
	var copies arena
	step := int64(stride)
	for from := request.From; from <= request.UpTo && !r.More; {
		to := min(from+step, request.UpTo+1)
		if r.take(tx, from, to, request.Limit, &copies) {
			step = stride
		} else {
			step = min(2*step, longestStride)
		}
		from = to
	}
	if request.Beyond && !r.More { // a moment's worth
		r.take(tx, max(request.From, request.UpTo+1), math.MaxInt64, request.Limit, &copies)
	}
}

// take copies rows from one revision up to, but not including, another, until one begins a revision beyond the limit, and tells whether
// there were any. etcd answers with those in the file and then with those that wait for the next commit; where it remembers the latter
// from before a commit, they come twice.
func (r *Rows) take(tx backend.UnsafeReader, from, to int64, limit int, copies *arena) (found bool) {
	var before []byte
	keys, values := tx.UnsafeRange(schema.Key, first(from), first(to), math.MaxInt64)
	for i, key := range keys {
		if bytes.Compare(key, before) <= 0 {
			continue
		}
		revision := mvcc.BytesToBucketKey(key).Main
		if r.More = revision != r.End && r.Bytes >= limit; r.More {
			break
		}
		r.Rows = append(r.Rows, format.Row{Key: copies.copy(key), Value: copies.copy(values[i])})
		r.Bytes += len(key) + len(values[i])
		r.End, before = revision, key
	}
	return len(keys) > 0
}

// first is the key of the first row that a revision can have.
func first(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// arena copies many small slices with few allocations.
type arena struct{ block []byte }

const arenaBlock = 256 << 10

func (a *arena) copy(from []byte) []byte {
	if len(from) > arenaBlock/4 {
		return append([]byte(nil), from...)
	}
	if cap(a.block)-len(a.block) < len(from) {
		a.block = make([]byte, 0, arenaBlock)
	}
	begin := len(a.block)
	a.block = append(a.block, from...)
	return a.block[begin:len(a.block):len(a.block)]
}
