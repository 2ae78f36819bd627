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

// Digest identifies a content.
type Digest struct {
	SHA256 [sha256.Size]byte
	Size   int64 // bytes
}

// PutOnce ensures that the object name exists and contains exactly content, and returns its digest. If Put leaves
// open whether the object was created, PutOnce reads it back and compares digests. It can therefore be called again
// with the same content, after an error or a restart, until it succeeds.
//
// ErrExists means that the object has different content because another writer was first. After any other error,
// the object could not be created or not be read back; after ErrUnavailable, it may still come into existence.
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

// resolve reads back an object that Put failed to create. It returns nil if the object has the wanted content.
func resolve(ctx context.Context, s Store, name string, want Digest, put error) error {
	stored, err := digestOf(ctx, s, name, want.Size)
	switch {
	case err == nil && stored == want:
		return nil
	case err == nil:
		return fmt.Errorf("%s in %s has different content: %w", name, s, ErrExists)
	case errors.Is(err, ErrNotFound) && errors.Is(put, ErrExists):
		return fmt.Errorf("%s in %s cannot be created because it exists, but cannot be found when it is read; remove it if this persists: %w", name, s, &Unavailable{})
	case errors.Is(err, ErrNotFound):
		return put
	case errors.Is(err, ErrUnavailable) && errors.Is(put, ErrUnavailable):
		return put // avoids the same cause twice
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

// source hashes the bytes read from content and records its error.
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

// digest reads the rest first, because Put may have returned early.
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

const probeText = "etcd-wrapper made this object to see whether the store honours create-if-absent. It may be deleted.\n"

// Capabilities describes what a store supports.
type Capabilities struct {
	// CreateIfAbsent reports that the store rejects the creation of an existing object. A store that overwrites it
	// instead must have only one writer, because two writers would destroy each other's backups.
	CreateIfAbsent bool
	// Delete is nil if objects can be removed; otherwise ErrDenied or ErrLocked.
	Delete error
}

// String returns a sentence for users.
func (a Capabilities) String() string {
	sentence := "the store supports create-if-absent; several members may write to it"
	if !a.CreateIfAbsent {
		sentence = "the store ignores create-if-absent and overwrites objects: let only one member write to it"
	}
	if a.Delete != nil {
		sentence += "; old backups cannot be removed"
	}
	return sentence
}

// Probe creates an object below probe/ twice and removes it, to check whether the store is reachable and writable,
// and what it supports. An error means that this remains unknown.
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

// clocks is the prefix of the objects that Clock creates.
const clocks = "probe/clock-"

// Clock returns the time according to the store's clock. It creates an object, reads its creation time from a
// listing, and removes the object. It also removes older objects of this kind that were locked, oldest first. A
// time together with an error means that the removal failed.
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
			break // younger objects are locked as well, or deletion is denied
		}
	}
	if err != nil && !errors.Is(err, ErrLocked) {
		return now, fmt.Errorf("cannot remove the object used to read the clock of %s: %w", s, err)
	}
	return now, nil
}

// Modified returns the creation time of an object by the store's clock, or ErrNotFound.
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
