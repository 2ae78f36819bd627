package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Digest identifies a content.
type Digest struct {
	SHA256 [sha256.Size]byte
	Size   int64 // bytes
}

// PutOnce ensures that the object name exists and holds exactly content, and returns its digest. If Put leaves open whether the
// object was created, PutOnce reads it back and compares digests. So it can be called again with the same content, after an error
// and after a restart, until it succeeds.
//
// ErrExists means that the object has other content: another writer was first. After any other error the object could not be
// created or not be read back; after ErrUnavailable it may still exist.
func PutOnce(ctx context.Context, s Store, name string, content io.Reader) (Digest, error) {
	source := &source{content: content, hash: sha256.New()}
	err := s.Put(ctx, name, source)
	if err != nil && source.failed == nil && !errors.Is(err, ErrExists) && !errors.Is(err, ErrUnavailable) {
		return Digest{}, err
	}
	want, failed := source.digest()
	if failed != nil {
		return Digest{}, fmt.Errorf("cannot read what to store as %s: %w", name, failed)
	}
	if err != nil {
		err = resolve(ctx, s, name, want, err)
	}
	return want, err
}

// resolve reads back an object that Put failed to create. It returns nil if the content is the wanted one.
func resolve(ctx context.Context, s Store, name string, want Digest, put error) error {
	stored, err := digestOf(ctx, s, name, want.Size)
	switch {
	case err == nil && stored == want:
		return nil
	case err == nil:
		return fmt.Errorf("%s in %s has other content: %w", name, s, ErrExists)
	case errors.Is(err, ErrNotFound) && errors.Is(put, ErrExists):
		return fmt.Errorf("%s in %s exists when it is created, but not when it is read; remove it if that persists: %w", name, s, &Unavailable{})
	case errors.Is(err, ErrNotFound):
		return put
	case errors.Is(err, ErrUnavailable) && errors.Is(put, ErrUnavailable):
		return put // the same cause twice
	default:
		return fmt.Errorf("cannot determine who created %s in %s (%s): %w", name, s, put.Error(), err)
	}
}

// digestOf reads an object up to one byte beyond its expected size.
func digestOf(ctx context.Context, s Store, name string, size int64) (Digest, error) {
	stored, err := s.Get(ctx, name, 0, size+1)
	if err != nil {
		return Digest{}, err
	}
	defer stored.Close()
	return (&source{content: stored, hash: sha256.New()}).digest()
}

// source hashes what is read from content and remembers its error.
type source struct {
	content io.Reader
	hash    hash.Hash
	size    int64
	failed  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.content.Read(p)
	s.hash.Write(p[:n])
	s.size += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// digest reads the rest, since Put may have ended early.
func (s *source) digest() (digest Digest, err error) {
	if s.failed == nil {
		_, _ = io.Copy(io.Discard, s) // s.failed has its error
	}
	if s.failed != nil {
		return Digest{}, s.failed
	}
	s.hash.Sum(digest.SHA256[:0])
	digest.Size = s.size
	return digest, nil
}
