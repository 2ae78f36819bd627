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
type copied struct {
	path     string
	sealed   bool // it is what the store gets; otherwise it is the database itself
	database format.Body
	held     time.Duration
	hash     *archive.Hash
	size     int64        // bytes
	sent     atomic.Int64 // of these bytes, in the present attempt

	there   *archive.Full // its data are in the store, under this one's name; nil if they are not
	thereAt time.Time
}

// smallDatabase is up to which size, in bytes, etcd is asked for its hash: it reads all rows under a lock for that.
const smallDatabase = 64 << 20

// copy writes the database into the spool and closes the snapshot: as it is, which is fast, or sealed, where the volume has not
// the room for that.
func (w *Writer) copy(ctx context.Context, snapshot *capture.Snapshot) (*copied, error) {
	defer snapshot.Close()
	file, err := w.spool.Create("full")
	if err != nil {
		return nil, err
	}
	c := &copied{path: file.Name(), sealed: w.room(snapshot.Size) != nil}
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
const waitsForManifest = 12 * time.Hour

// put stores the data of the copy, unless they are there and only what follows them failed before.
func (c *copied) put(ctx context.Context, to *archive.Archive, full archive.Full) (archive.Full, error) {
	if c.there != nil && time.Since(c.thereAt) <= waitsForManifest {
		return *c.there, nil
	}
	c.there = nil
	file, err := os.Open(c.path)
	if err != nil {
		return archive.Full{}, err
	}
	defer file.Close()
	c.sent.Store(0)
	sending := &sending{Reader: file, sent: &c.sent, throttled: !c.sealed}
	if c.sealed {
		full.Database = c.database
		full, err = to.PutSealedData(ctx, full, sending)
	} else {
		full, err = to.PutData(ctx, full, sending)
	}
	if err == nil {
		c.there, c.thereAt = &full, time.Now()
	}
	return full, err
}

// While a copy of the database is on the volume, there must always be room for segments beside what etcd needs: they are small, and
// without them the chain ends. So the copy gives way to them, however long the store takes for it.

// inTheWay is the error that says that a copy has to go; nil as long as it may stay.
func (w *Writer) inTheWay() error { return w.room(most) }

// whileThereIsRoom does something that has a copy on the volume, and cuts it off when the volume runs short.
func (w *Writer) whileThereIsRoom(ctx context.Context, work func(context.Context) error) error {
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
				if err := w.inTheWay(); err != nil {
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
	throttledPiece = 1 << 20 // bytes between rests
	longestRest    = 20 * time.Millisecond
)

// sending is a reader that counts. Throttled, it rests as long as whoever reads has worked on each piece: compressing a full would
// otherwise keep a core busy for as long as it takes, which clients of etcd notice where there are few.
type sending struct {
	io.Reader
	sent      *atomic.Int64
	throttled bool
	since     int       // bytes since the last rest
	begun     time.Time // of the work on the present piece; zero before the first one
}

func (s *sending) Read(p []byte) (int, error) {
	if s.throttled && s.since >= throttledPiece {
		time.Sleep(min(time.Since(s.begun), longestRest))
		s.since, s.begun = 0, time.Now()
	}
	if s.begun.IsZero() {
		s.begun = time.Now()
	}
	n, err := s.Reader.Read(p)
	s.since += n
	s.sent.Add(int64(n))
	return n, err
}
