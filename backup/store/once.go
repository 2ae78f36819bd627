package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Digest tells contents apart.
type Digest struct {
	SHA256 [sha256.Size]byte
	Size   int64 // bytes
}

// PutOnce makes sure that the object name exists and holds exactly content, and returns content's digest. It resolves what
// Put leaves open, a reply that was lost: then the object is read back, and is ours if its digest is. So it may be called
// again with the same content, after an error and after a restart, until it succeeds.
//
// ErrExists says that the object is there with other content: another writer was first. Any other error says that it could
// not be created, or not be read back; with ErrUnavailable it may be there all the same.
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

// resolve reads back the object that Put failed to create. It returns nil if it is there as wanted.
func resolve(ctx context.Context, s Store, name string, want Digest, put error) error {
	stored, err := digestOf(ctx, s, name, want.Size)
	switch {
	case err == nil && stored == want:
		return nil
	case err == nil:
		return fmt.Errorf("%s in %s has other content: %w", name, s, ErrExists)
	case errors.Is(err, ErrNotFound) && errors.Is(put, ErrExists):
		return fmt.Errorf("%s in %s is there to who creates it, and not to who reads it: remove it if that stays so: %w", name, s, &Unavailable{})
	case errors.Is(err, ErrNotFound):
		return put
	case errors.Is(err, ErrUnavailable) && errors.Is(put, ErrUnavailable):
		return put // one of the two says it all
	default:
		return fmt.Errorf("cannot tell whose %s in %s is (%s): %w", name, s, put.Error(), err)
	}
}

// digestOf reads an object, but not further than one byte beyond the size that it should have.
func digestOf(ctx context.Context, s Store, name string, size int64) (Digest, error) {
	stored, err := s.Get(ctx, name, 0, size+1)
	if err != nil {
		return Digest{}, err
	}
	defer stored.Close()
	return (&source{content: stored, hash: sha256.New()}).digest()
}

// source notes what is read of content, and how that failed.
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

// digest reads what is left, for Put may have ended early.
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
