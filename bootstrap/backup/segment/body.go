package segment

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"etcd-wrapper/bootstrap/backup/seal"
)

// body reads what a manifest promised, no more, and fails if it ends early.
type body struct {
	source   io.Reader
	left     int64
	hash     hash.Hash
	promised Digest
}

func newBody(source io.Reader, promised Body) *body {
	return &body{source: source, left: promised.Bytes, hash: sha256.New(), promised: promised.SHA256}
}

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.source.Read(p[:min(int64(len(p)), b.left)])
	b.hash.Write(p[:n])
	b.left -= int64(n)
	if seal.Ended(err) && b.left > 0 {
		return n, fmt.Errorf("%w: %d bytes are missing at its end", seal.ErrDamaged, b.left)
	}
	return n, err
}

// check says whether what was read is what was promised.
func (b *body) check() error {
	if b.left > 0 {
		return fmt.Errorf("%w: its records end %d bytes before it", seal.ErrDamaged, b.left)
	}
	if Digest(b.hash.Sum(nil)) != b.promised {
		return fmt.Errorf("%w: its bytes are not those of its manifest", seal.ErrDamaged)
	}
	return nil
}
