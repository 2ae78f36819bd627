package backups

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"etcd-wrapper/bootstrap/backup/rebuild"
)

// intact compares a stock snapshot with the digest at its end, before it is opened as a database: of one that was cut off, pages are
// missing, and whoever reads these is ended by the system.
func intact(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - sha256.Size
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(cancelable{ctx, file}, size)); err != nil {
		return err
	}
	if told, err := io.ReadAll(io.LimitReader(file, sha256.Size)); err != nil || size <= 0 || !bytes.Equal(told, sum.Sum(nil)) {
		return fmt.Errorf("%w: it does not end with its SHA-256, as a snapshot of etcd does; perhaps it was cut off", rebuild.ErrDamaged)
	}
	return nil
}

// cancelable is a reader that ends with its context.
type cancelable struct {
	ctx context.Context
	io.Reader
}

func (c cancelable) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.Reader.Read(p)
}
