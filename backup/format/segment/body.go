package segment

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"etcd-wrapper/backup/format/seal"
)

// Body is what a statement says of bytes.
type Body struct {
	Bytes  int64  `json:"bytes"`
	SHA256 Digest `json:"sha256"`
}

// Reader reads what the statement speaks of from source, and no more. It returns io.EOF only if all of that was there and as
// stated; else seal.ErrDamaged, or what source fails with.
func (b Body) Reader(source io.Reader) io.Reader { return newBody(source, b) }

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
		return 0, b.end()
	}
	n, err := b.source.Read(p[:min(int64(len(p)), b.left)])
	b.hash.Write(p[:n])
	b.left -= int64(n)
	switch {
	case err == nil:
		return n, nil
	case !seal.Ended(err):
		return n, err
	case b.left > 0:
		return n, fmt.Errorf("%w: %d bytes are missing at its end", seal.ErrDamaged, b.left)
	}
	return n, b.end()
}

func (b *body) end() error {
	if Digest(b.hash.Sum(nil)) != b.promised {
		return fmt.Errorf("%w: its bytes are not those of its manifest", seal.ErrDamaged)
	}
	return io.EOF
}

// check says whether all was read, and is what was promised.
func (b *body) check() error {
	if b.left > 0 {
		return fmt.Errorf("%w: its records end %d bytes before it", seal.ErrDamaged, b.left)
	}
	if err := b.end(); !seal.Ended(err) {
		return err
	}
	return nil
}
