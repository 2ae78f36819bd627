package restore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
)

// chunk is how many bytes are read and written at a time.
const chunk = 1 << 20

// ErrDamaged says that what was read cannot be what was once written.
var ErrDamaged = errors.New("the backup is damaged")

// receive writes a snapshot's database to its file, as it comes, and compares it with the digest behind it.
func receive(ctx context.Context, open func(context.Context) (io.ReadCloser, error), database *receiver) error {
	snapshot, err := open(ctx)
	if err != nil {
		return err
	}
	ahead, stop := readAhead(snapshot)
	_, err = io.CopyBuffer(struct{ io.Writer }{database}, contextReader{ctx, ahead}, make([]byte, chunk))
	stop()
	if err := errors.Join(err, snapshot.Close()); err != nil {
		return err
	}
	return database.verify()
}

// readAhead has another goroutine read, so that opening what was sealed and writing it take two cores. stop waits for
// that goroutine.
func readAhead(r io.Reader) (ahead io.Reader, stop func()) {
	reader, writer := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.CopyBuffer(struct{ io.Writer }{writer}, struct{ io.Reader }{r}, make([]byte, chunk))
		_ = writer.CloseWithError(err) // never fails
	}()
	return reader, func() {
		_ = reader.Close() // never fails
		<-done
	}
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}

// receiver writes all but the last 32 bytes, which are the digest. Nobody knows yet how long a snapshot is, so the newest
// 32 bytes are always held back.
type receiver struct {
	to   io.Writer // the file
	sum  hash.Hash
	told *teller
	held []byte
	size int64
}

func (r *receiver) Write(p []byte) (int, error) {
	written := len(p)
	if len(p) < sha256.Size {
		p = append(r.held, p...)
		r.held = nil
	}
	cut := max(len(p)-sha256.Size, 0)
	if err := r.keep(r.held, p[:cut]); err != nil {
		return 0, err
	}
	r.held = bytes.Clone(p[cut:])
	return written, nil
}

func (r *receiver) keep(parts ...[]byte) error {
	for _, part := range parts {
		_, _ = r.sum.Write(part) // never fails
		if _, err := r.to.Write(part); err != nil {
			return err
		}
		r.size += int64(len(part))
		r.told.add(int64(len(part)), 0)
	}
	return nil
}

func (r *receiver) verify() error {
	switch {
	case r.size == 0 || r.size%512 != 0: // as etcdutl judges whether there is a digest
		return fmt.Errorf("%w: it has %d bytes, which is no database and a digest", ErrDamaged, r.size+int64(len(r.held)))
	case !bytes.Equal(r.sum.Sum(nil), r.held):
		return fmt.Errorf("%w: its SHA-256 is %x, and it says %x", ErrDamaged, r.sum.Sum(nil), r.held)
	}
	return nil
}
