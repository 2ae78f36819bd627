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

// Abilities is what Probe saw of a store.
type Abilities struct {
	// CreateIfAbsent says that the store refuses to create an object that is there. If it is false, the store overwrote it:
	// two writers then destroy each other's backups without noticing, so only one may use the store.
	CreateIfAbsent bool
	// Delete is nil if the probe's object could be removed; ErrDenied or ErrLocked if backups can be made, but not be removed.
	Delete error
}

// String is the sentence for people.
func (a Abilities) String() string {
	sentence := "the store refuses to overwrite: several members may write to it"
	if !a.CreateIfAbsent {
		sentence = "the store overwrites objects in spite of create-if-absent: let one member only write to it"
	}
	if a.Delete != nil {
		sentence += "; old backups cannot be removed"
	}
	return sentence
}

// Probe creates an object twice, below probe/, and removes it. It shows at start whether the store can be reached and written,
// and what it is able to do. An error says that this could not be found out.
func Probe(ctx context.Context, s Store) (Abilities, error) {
	name := "probe/" + rand.Text()
	if _, err := PutOnce(ctx, s, name, bytes.NewReader([]byte(probeText))); err != nil {
		return Abilities{}, fmt.Errorf("cannot probe %s: %w", s, err)
	}
	again := s.Put(ctx, name, bytes.NewReader([]byte("overwritten: "+probeText)))
	abilities := Abilities{CreateIfAbsent: errors.Is(again, ErrExists), Delete: s.Delete(ctx, name)}
	if again != nil && !abilities.CreateIfAbsent {
		return Abilities{}, fmt.Errorf("cannot probe %s: %w", s, again)
	}
	if abilities.Delete != nil && !errors.Is(abilities.Delete, ErrDenied) && !errors.Is(abilities.Delete, ErrLocked) {
		return Abilities{}, fmt.Errorf("cannot probe %s: %w", s, abilities.Delete)
	}
	return abilities, nil
}

// clocks is how names of objects begin that Clock creates.
const clocks = "probe/clock-"

// Clock is what the store's own clock shows: that of an object which it creates, lists, and removes. Older ones of its kind, which were
// locked, are removed as soon as they may be, the oldest first. An error beside a time says that one could not be.
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
	maps.DeleteFunc(all, func(other string, at time.Time) bool { return other != name && now.Sub(at) < time.Hour }) // somebody looks at it
	for _, old := range slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[a].Compare(all[b]) }) {
		if err = s.Delete(ctx, old); err != nil {
			break // what is younger is locked as well, or denied
		}
	}
	if err != nil && !errors.Is(err, ErrLocked) {
		return now, fmt.Errorf("cannot remove what showed the clock of %s: %w", s, err)
	}
	return now, nil
}

// Modified is when an object was created, by the store's clock. ErrNotFound says that there is none.
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
