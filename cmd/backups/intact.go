package backups

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"etcd-wrapper/backup/restore"
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
		return fmt.Errorf("%w: it does not end with its SHA-256, as a snapshot of etcd does; %s", restore.ErrDamaged, perhaps(path, info.Size()))
	}
	return nil
}

// sector is what the size of a snapshot without a digest is a multiple of, as etcdutl tells one.
const sector = 512

// perhaps is what a file may be that is no snapshot, and what to do with it.
func perhaps(path string, size int64) string {
	if size == 0 || size%sector != 0 {
		return "perhaps it was cut off"
	}
	return fmt.Sprintf("of a database that was copied, such as member/snap/db, etcd-wrapper etcdutl snapshot restore %s --skip-hash-check --data-dir=DIR makes a data directory, if it is whole", path)
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
