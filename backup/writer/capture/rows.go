package capture

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// A Request defines what ReadRows reads.
type Request struct {
	From    int64 // the first revision
	UpTo    int64 // the last one, which must be a current or past revision of etcd, so that all of its rows exist
	Beyond  bool  // read later revisions as well, if they exist
	Limit   int   // stop after the revision in which the rows exceed this many bytes
	Buckets bool  // read the small buckets as well; only with Beyond, and if the limit is not reached
	Left    bool  // accept the rows that compaction has left
}

// Rows is the result of one read transaction.
type Rows struct {
	Rows      []format.Row     // in order
	Bytes     int              // size of the rows
	End       int64            // the last revision with rows; From-1 if there are none
	More      bool             // the limit was reached before UpTo
	Compacted int64            // the scheduled compaction of etcd; 0 if there was none
	Buckets   []*format.Bucket // all small buckets, including empty ones; nil if they were not read
	Held      time.Duration    // how long the transaction was open
}

// Number of revisions per lookup. A row costs 48 bytes until it is copied, a look-up less than a microsecond.
const (
	stride    = 256
	maxStride = 1 << 16 // across revisions without rows, which a bump of the revision leaves
)

// ReadRows reads the rows of a range of revisions, and only whole revisions. It returns ErrCompacted if the first of them is compacted, and
// ErrClosed if etcd closed its database meanwhile.
func (r *Reader) ReadRows(request Request) (Rows, error) {
	rows := Rows{End: request.From - 1}
	var gap error
	held, err := r.view(func(tx backend.UnsafeReader) {
		rows.Compacted, _ = mvcc.UnsafeReadScheduledCompact(tx)
		if rows.Compacted >= request.From && !request.Left {
			gap = fmt.Errorf("%w at revision %d before revision %d was captured", ErrCompacted, rows.Compacted, request.From)
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

// read reads in strides. A limit on the number of rows would skip rows: etcd then returns those that wait for the next commit before
// older ones.
func (r *Rows) read(tx backend.UnsafeReader, request Request) {
	step := int64(stride)
	for from := request.From; from <= request.UpTo && !r.More; {
		to := min(from+step, request.UpTo+1)
		if r.take(tx, from, to, request.Limit) {
			step = stride
		} else {
			step = min(2*step, maxStride)
		}
		from = to
	}
	if request.Beyond && !r.More { // few rows
		r.take(tx, max(request.From, request.UpTo+1), math.MaxInt64, request.Limit)
	}
}

// take copies the rows from one revision up to, but not including, another, or up to the first revision beyond the limit. It reports
// whether there were any. etcd returns the rows in the file and then those that wait for the next commit; a row may occur in both.
func (r *Rows) take(tx backend.UnsafeReader, from, to int64, limit int) (found bool) {
	var previous []byte
	keys, values := tx.UnsafeRange(schema.Key, firstKey(from), firstKey(to), math.MaxInt64)
	for i, key := range keys {
		if bytes.Compare(key, previous) <= 0 {
			continue
		}
		revision := mvcc.BytesToBucketKey(key).Main
		if r.More = revision != r.End && r.Bytes >= limit; r.More {
			break
		}
		r.Rows = append(r.Rows, format.Row{Key: bytes.Clone(key), Value: bytes.Clone(values[i])})
		r.Bytes += len(key) + len(values[i])
		r.End, previous = revision, key
	}
	return len(keys) > 0
}

// firstKey returns the key of the first row that a revision can have.
func firstKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}
