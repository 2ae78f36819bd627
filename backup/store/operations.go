package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"time"
)

// Digest is the SHA-256 and size of content.
type Digest struct {
	SHA256 [sha256.Size]byte
	Size   int64 // bytes
}

// PutOnce ensures that an object exists with exactly the given content, and returns the digest of the content. If the
// result of Put is ambiguous, PutOnce reads the object back and compares digests. Callers may therefore repeat
// PutOnce with the same content, after an error or a restart, until it succeeds.
//
// ErrExists means that another writer has created the object with different content. Any other error means that the
// object could not be created or read back. After ErrUnavailable, a request in flight may still create the object.
func PutOnce(ctx context.Context, s Store, name string, content io.Reader) (Digest, error) {
	source := &source{content: content, hash: sha256.New()}
	err := s.Put(ctx, name, source)
	if err != nil && source.failed == nil && !errors.Is(err, ErrExists) && !errors.Is(err, ErrUnavailable) {
		return Digest{}, err
	}
	want, failed := source.digest()
	if failed != nil {
		return Digest{}, fmt.Errorf("cannot read the content for %s: %w", name, failed)
	}
	if err != nil {
		err = resolve(ctx, s, name, want, err)
	}
	return want, err
}

// resolve reads back an object that Put failed to create, and returns nil if the object has the expected content.
func resolve(ctx context.Context, s Store, name string, want Digest, put error) error {
	stored, err := digestOf(ctx, s, name, want.Size)
	switch {
	case err == nil && stored == want:
		return nil
	case err == nil:
		return fmt.Errorf("%s in %s has different content: %w", name, s, ErrExists)
	case errors.Is(err, ErrNotFound) && errors.Is(put, ErrExists):
		return fmt.Errorf("%s in %s already exists but cannot be found; delete the object if this persists: %w", name, s, &Unavailable{})
	case errors.Is(err, ErrNotFound):
		return put
	case errors.Is(err, ErrUnavailable) && errors.Is(put, ErrUnavailable):
		return put // avoids reporting the same cause twice
	default:
		return fmt.Errorf("cannot determine who created %s in %s (%s): %w", name, s, put.Error(), err)
	}
}

// digestOf reads an object up to one byte beyond the expected size.
func digestOf(ctx context.Context, s Store, name string, size int64) (Digest, error) {
	stored, err := s.Get(ctx, name, 0, size+1)
	if err != nil {
		return Digest{}, err
	}
	defer stored.Close()
	return (&source{content: stored, hash: sha256.New()}).digest()
}

// source hashes the content while it is read, and records read errors.
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

// digest first reads the rest of the content, because Put may have returned early.
func (s *source) digest() (digest Digest, err error) {
	if s.failed == nil {
		_, _ = io.Copy(io.Discard, s) // the error is in s.failed
	}
	if s.failed != nil {
		return Digest{}, s.failed
	}
	s.hash.Sum(digest.SHA256[:0])
	digest.Size = s.size
	return digest, nil
}

const probeText = "Created by etcd-wrapper to check whether the store supports create-if-absent. Safe to delete.\n"

// Capabilities describes which features a store supports.
type Capabilities struct {
	// CreateIfAbsent means that the store refuses to create an existing object. A store that overwrites objects must
	// have a single writer, because two writers would overwrite each other's backups.
	CreateIfAbsent bool
	// Delete is nil if objects can be deleted; otherwise ErrDenied or ErrLocked.
	Delete error
}

// String describes the capabilities for users.
func (a Capabilities) String() string {
	sentence := "the store supports create-if-absent: multiple members can write to it"
	if !a.CreateIfAbsent {
		sentence = "the store does not support create-if-absent and overwrites objects: only one member may write to it"
	}
	if a.Delete != nil {
		sentence += "; old backups cannot be deleted"
	}
	return sentence
}

// Probe checks whether the store is reachable and writable, and what it supports, by creating an object under probe/
// twice and deleting it. An error means that the capabilities are still unknown.
func Probe(ctx context.Context, s Store) (Capabilities, error) {
	name := "probe/" + rand.Text()
	if _, err := PutOnce(ctx, s, name, bytes.NewReader([]byte(probeText))); err != nil {
		return Capabilities{}, fmt.Errorf("cannot probe %s: %w", s, err)
	}
	again := s.Put(ctx, name, bytes.NewReader([]byte("overwritten: "+probeText)))
	abilities := Capabilities{CreateIfAbsent: errors.Is(again, ErrExists), Delete: s.Delete(ctx, name)}
	if again != nil && !abilities.CreateIfAbsent {
		return Capabilities{}, fmt.Errorf("cannot probe %s: %w", s, again)
	}
	if abilities.Delete != nil && !errors.Is(abilities.Delete, ErrDenied) && !errors.Is(abilities.Delete, ErrLocked) {
		return Capabilities{}, fmt.Errorf("cannot probe %s: %w", s, abilities.Delete)
	}
	return abilities, nil
}

// clocks is the name prefix of objects that Clock creates.
const clocks = "probe/clock-"

// Clock returns the time according to the store's clock. Clock creates an object, reads the creation time from a
// listing, and deletes the object. Clock also deletes older objects that were locked, oldest first. If Clock returns
// both a time and an error, the deletion failed.
func Clock(ctx context.Context, s Store) (now time.Time, err error) {
	name := clocks + rand.Text()
	if _, err := PutOnce(ctx, s, name, bytes.NewReader([]byte(probeText))); err != nil {
		return now, fmt.Errorf("cannot read the clock of %s: %w", s, err)
	}
	all := map[string]time.Time{}
	for object, err := range s.List(ctx, clocks, "") {
		if err != nil {
			return now, fmt.Errorf("cannot read the clock of %s: %w", s, err)
		}
		all[object.Name] = object.Modified
	}
	now, listed := all[name]
	if !listed {
		return now, fmt.Errorf("cannot read the clock of %s: %s: %w", s, name, ErrNotFound)
	}
	maps.DeleteFunc(all, func(other string, at time.Time) bool { return other != name && now.Sub(at) < time.Hour }) // another process may be reading the object
	for _, old := range slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[a].Compare(all[b]) }) {
		if err = s.Delete(ctx, old); err != nil {
			break // newer objects are locked as well, or deletion is denied
		}
	}
	if err != nil && !errors.Is(err, ErrLocked) {
		return now, fmt.Errorf("cannot remove the object used to read the clock of %s: %w", s, err)
	}
	return now, nil
}

// Modified returns the creation time of an object according to the store's clock, or ErrNotFound.
func Modified(ctx context.Context, s Store, name string) (time.Time, error) {
	for object, err := range s.List(ctx, name, "") {
		if err != nil {
			return time.Time{}, err
		}
		if object.Name == name {
			return object.Modified, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %w", name, ErrNotFound)
}
