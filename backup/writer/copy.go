package writer

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer/capture"
)

// copied is a database in the spool.
type databaseCopy struct {
	path     string
	sealed   bool // it is what the store gets; otherwise it is the database itself
	database format.Body
	held     time.Duration
	hash     *archive.Hash
	size     int64        // bytes
	sent     atomic.Int64 // of these bytes, in the present attempt

	stored   *archive.Full // its data are in the store, under this one's name; nil if they are not
	storedAt time.Time
}

// smallDatabase is up to which size, in bytes, etcd is asked for its hash: it reads all rows under a lock for that.
const smallDatabase = 64 << 20

// copy writes the database into the spool and closes the snapshot: as it is, which is fast, or sealed, where the volume has not
// the room for that.
func (w *Writer) copy(ctx context.Context, snapshot *capture.Snapshot) (*databaseCopy, error) {
	defer snapshot.Close()
	file, err := w.spool.Create("full")
	if err != nil {
		return nil, err
	}
	c := &databaseCopy{path: file.Name(), sealed: w.room(snapshot.Size) != nil}
	if c.sealed {
		c.database, err = w.options.Archive.SealSnapshot(file, func(to io.Writer) (int64, error) {
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
		if hash, err := w.options.Etcd.Hash(snapshot.Revision); err == nil {
			c.hash = &hash
		}
	}
	return c, nil
}

// waitsForManifest is how long data count without a manifest. They are remains a day after they were put.
const dataLifetime = 12 * time.Hour

// put stores the data of the copy, unless they are there and only what follows them failed before.
func (c *databaseCopy) put(ctx context.Context, to *archive.Archive, full archive.Full) (archive.Full, error) {
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

// While a copy of the database is on the volume, there must always be room for segments beside what etcd needs: they are small, and
// without them the chain ends. So the copy gives way to them, however long the store takes for it.

// inTheWay is the error that says that a copy has to go; nil as long as it may stay.
func (w *Writer) checkRoom() error { return w.room(maxSegment) }

// whileThereIsRoom does something that has a copy on the volume, and cuts it off when the volume runs short.
func (w *Writer) runWithRoom(ctx context.Context, work func(context.Context) error) error {
	ctx, cut := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cut(nil)
	watching.Go(func() {
		ticker := time.NewTicker(w.pace.tick) // no disk writes more than the spool's reserve in between
		defer ticker.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-ticker.C:
				if err := w.checkRoom(); err != nil {
					cut(err)
				}
			}
		}
	})
	err := work(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

const (
	pauseEvery = 1 << 20 // bytes between rests
	maxPause   = 20 * time.Millisecond
)

// sending is a reader that counts. Throttled, it rests as long as whoever reads has worked on each piece: compressing a full would
// otherwise keep a core busy for as long as it takes, which clients of etcd notice where there are few.
type throttledReader struct {
	io.Reader
	sent      *atomic.Int64
	throttled bool
	unpaused  int       // bytes since the last rest
	started   time.Time // of the work on the present piece; zero before the first one
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
