package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

const probeText = "etcd-wrapper made this object to see whether the store honours create-if-absent. It may be deleted.\n"

// Capabilities describes what a store supports.
type Capabilities struct {
	// CreateIfAbsent reports that the store rejects the creation of an object that exists. A store that overwrites it instead must have
	// one writer only: two would destroy each other's backups.
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

// Probe creates an object below probe/ twice and removes it, to check whether the store can be reached and written, and what it
// supports. An error means that this is still unknown.
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

// Clock returns the time by the store's clock. It creates an object, reads its time from a listing and removes it. It also removes
// older objects of its kind that were locked, oldest first. A time with an error means that this failed.
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
	maps.DeleteFunc(all, func(other string, at time.Time) bool { return other != name && now.Sub(at) < time.Hour }) // another process may be reading it
	for _, old := range slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[a].Compare(all[b]) }) {
		if err = s.Delete(ctx, old); err != nil {
			break // younger ones are locked as well, or deletion is denied
		}
	}
	if err != nil && !errors.Is(err, ErrLocked) {
		return now, fmt.Errorf("cannot remove the object that showed the clock of %s: %w", s, err)
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
