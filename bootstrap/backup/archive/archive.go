// Package archive is how backups lie in a store: names, manifests, what was kept and how it is read back. It writes what it is
// given and deletes nothing; when to write, merge and delete is its callers' business.
package archive

import (
	"errors"

	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/store"
)

// What can be wrong with an archive, for errors.Is, beside what packages store and seal say: store.ErrNotFound is an object
// that is missing, seal.ErrDamaged and seal.ErrUntrusted are what their names say, and the message names the object.
var (
	// ErrForeign says that something belongs to another cluster.
	ErrForeign = errors.New("another cluster's")
	// ErrNotKept says that there is no way to what was asked for; the message names what there is.
	ErrNotKept = errors.New("not kept")
	// ErrHole says that segments don't follow one another.
	ErrHole = errors.New("the chain has a hole")
)

// Archive is the backups in a store. Its methods may be called from any goroutine that doesn't serve.
type Archive struct {
	store store.Store
	keys  *seal.Keys
}

// New returns the archive in a store. It looks at nothing yet.
func New(s store.Store, keys *seal.Keys) *Archive { return &Archive{store: s, keys: keys} }

// Store is where the archive lies.
func (a *Archive) Store() store.Store { return a.store }

// Keys are what it is sealed with.
func (a *Archive) Keys() *seal.Keys { return a.keys }

// String names the place for people.
func (a *Archive) String() string { return a.store.String() }

var errUnfinished = errors.New("unfinished")
