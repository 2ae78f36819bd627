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
	sealed   bool // the file is the object to upload; otherwise it is the plain database
	database format.Body
	held     time.Duration
	hash     *format.Hash
	size     int64        // bytes
	sent     atomic.Int64 // number of bytes sent in the current attempt

	stored   *archive.Full // the snapshot whose data is already uploaded; nil if there is none
	storedAt time.Time
}

// smallDatabase is the largest size, in bytes, for which the hash of etcd is recorded: computing it reads all rows
// under a lock.
const smallDatabase = 64 << 20

// copy waits for the gate and copies the database into the spool. If the volume lacks room for the plain database,
// it writes the sealed object, which is smaller but slower to write. It runs in a job.
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

// dataLifetime bounds the time that uploaded data waits for its manifest. Data without a manifest counts as garbage
// a day after it was put.
const dataLifetime = 12 * time.Hour

// put uploads the data of the copy, unless an earlier attempt has done so and failed in a later step.
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

// throttledReader counts the bytes read. If throttled, it pauses after each piece for as long as the reader's
// consumer worked on it: compressing a full snapshot would otherwise occupy a core throughout, which slows down etcd
// on small machines.
type throttledReader struct {
	io.Reader
	sent      *atomic.Int64
	throttled bool
	unpaused  int       // bytes since the last pause
	started   time.Time // start of the work on the current piece; zero before the first one
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
