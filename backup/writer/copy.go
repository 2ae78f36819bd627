package writer

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
)

// snapshotCopy is a copy of the database in the spool.
type snapshotCopy struct {
	path     string
	sealed   bool          // the file contains the sealed object instead of the plain database
	database format.Body   // size and digest of the plain database; only set if sealed
	held     time.Duration // how long etcd's transaction was open
	hash     *format.Hash  // etcd's hash at the revision of the copy; nil for a large database
	size     int64         // size of the file in bytes
	sent     atomic.Int64  // bytes sent by the current attempt to upload the data

	stored   *archive.Full // full snapshot whose data has been uploaded; nil if there is none
	storedAt time.Time
}

// smallDatabase is the maximum database size in bytes for which etcd's hash is recorded. etcd holds a lock while it
// reads all rows for the hash.
const smallDatabase = 64 << 20

// copy waits for the gate and copies the database into the spool. If the volume has no room for the plain database,
// copy writes the sealed object instead, which is smaller but takes longer. copy runs in a job.
func (f *snapshots) copy(ctx context.Context, m *full) (*snapshotCopy, error) {
	end, err := f.options.Gate.Acquire(ctx, "a full snapshot")
	if err != nil {
		return nil, err
	}
	defer end()
	var snapshot *capture.Snapshot
	f.wait(func() { snapshot, err = f.open(m) })
	if err != nil {
		return nil, err
	}
	defer snapshot.Close()
	file, err := f.chain.spool.Create("full")
	if err != nil {
		return nil, err
	}
	c := &snapshotCopy{path: file.Name(), sealed: f.room(snapshot.Size) != nil}
	if c.sealed {
		c.database, err = f.options.Archive.SealSnapshot(file, func(to io.Writer) (int64, error) {
			return snapshot.Size, snapshot.WriteTo(ctx, to)
		})
	} else {
		err = snapshot.WriteTo(ctx, file)
	}
	if err == nil {
		c.size, err = file.Seek(0, io.SeekEnd)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	c.held = snapshot.Held()
	if snapshot.Size <= smallDatabase {
		if hash, err := f.options.Etcd.Hash(snapshot.Revision); err == nil {
			c.hash = &hash
		}
	}
	return c, nil
}

// dataLifetime is the maximum time between uploading the data of a full snapshot and uploading its manifest. After one
// day, data without a manifest is considered an incomplete upload and deleted.
const dataLifetime = 12 * time.Hour

// put uploads the copied data unless an earlier attempt has already done so.
func (c *snapshotCopy) put(ctx context.Context, to *archive.Archive, full archive.Full) (archive.Full, error) {
	if c.stored != nil && time.Since(c.storedAt) <= dataLifetime {
		return *c.stored, nil
	}
	c.stored = nil
	file, err := os.Open(c.path)
	if err != nil {
		return archive.Full{}, err
	}
	defer file.Close()
	c.sent.Store(0)
	sending := &throttledReader{Reader: file, sent: &c.sent, throttled: !c.sealed}
	if c.sealed {
		full.Database = c.database
		full, err = to.PutSealedData(ctx, full, sending)
	} else {
		full, err = to.PutData(ctx, full, sending)
	}
	if err == nil {
		c.stored, c.storedAt = &full, time.Now()
	}
	return full, err
}

const (
	pauseEvery = 1 << 20 // bytes between pauses
	maxPause   = 20 * time.Millisecond
)

// throttledReader counts the bytes read. If throttled is set, throttledReader pauses after each piece for as long as
// the consumer took to process the piece. Without the pauses, compressing a full snapshot would keep one core busy
// and slow down etcd on small machines.
type throttledReader struct {
	io.Reader
	sent      *atomic.Int64
	throttled bool
	unpaused  int       // bytes since the last pause
	started   time.Time // time when the consumer received the current piece; zero before the first piece
}

func (s *throttledReader) Read(p []byte) (int, error) {
	if s.throttled && s.unpaused >= pauseEvery {
		time.Sleep(min(time.Since(s.started), maxPause))
		s.unpaused, s.started = 0, time.Now()
	}
	if s.started.IsZero() {
		s.started = time.Now()
	}
	n, err := s.Reader.Read(p)
	s.unpaused += n
	s.sent.Add(int64(n))
	return n, err
}
