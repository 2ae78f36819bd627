// Package archive is how backups lie in a store: names, manifests, what was kept and how it is read back. It writes what it is
// given and deletes nothing; when to write, merge and delete is its callers' business.
package archive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
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
	// ErrNameless says that the newest generation has backups, and its generation.json is gone: to go on from the one before would lose
	// all of them. It is a seal.ErrDamaged.
	ErrNameless = fmt.Errorf("%w: it is missing, although there are backups below it", seal.ErrDamaged)
	// ErrUnsigned says that the backups are signed, and that what this process would add is not: whoever trusts signatures alone could not
	// go on behind it.
	ErrUnsigned = errors.New("signed, and what this process writes would not be, as --backup-signing-key is not given")
)

// Archive is the backups in a store. Its methods may be called from any goroutine that doesn't serve.
type Archive struct {
	store store.Store
	keys  *seal.Keys
	ends  ends

	pretences sync.Map // why merged objects that were looked into are not what their names say, by name, size and time
}

// New returns the archive in a store. It looks at nothing yet.
func New(s store.Store, keys *seal.Keys) *Archive { return &Archive{store: s, keys: keys} }

// Store is where the archive lies.
func (a *Archive) Store() store.Store { return a.store }

// Keys are what it is sealed with.
func (a *Archive) Keys() *seal.Keys { return a.keys }

// String names the place for people.
func (a *Archive) String() string { return a.store.String() }

// heading is that of a statement of a kind.
func heading(kind string) seal.Heading { return seal.Heading{Format: seal.Format, Kind: kind} }

// state stores an object that is a statement.
func (a *Archive) state(ctx context.Context, name string, statement any) error {
	line, err := a.keys.Sign(statement)
	if err != nil {
		return fmt.Errorf("cannot sign %s: %w", name, err)
	}
	_, err = store.PutOnce(ctx, a.store, name, bytes.NewReader(line))
	return err
}

// statement reads an object that is a statement.
func (a *Archive) statement(ctx context.Context, name, kind string, into any) error {
	_, err := a.stated(ctx, name, kind, into)
	return err
}

// stated is statement, and returns the line that states it.
func (a *Archive) stated(ctx context.Context, name, kind string, into any) ([]byte, error) {
	content, err := a.store.Get(ctx, name, 0, seal.MaxLine+1)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	line, err := onlyLine(bufio.NewReader(content))
	if err == nil {
		err = a.keys.Check(line, kind, into)
	}
	return line, a.named(name, err)
}

// onlyLine is the one that there is.
func onlyLine(content *bufio.Reader) ([]byte, error) {
	line, err := seal.ReadLine(content)
	if seal.Ended(err) {
		err = fmt.Errorf("%w: it is empty", seal.ErrDamaged)
	}
	if err == nil {
		if _, more := content.ReadByte(); !seal.Ended(more) {
			err = errors.Join(more, seal.ErrDamaged)
		}
	}
	return line, err
}

// named says which object an error is about.
func (a *Archive) named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", name, a.store, err)
}

// damaged says that an object doesn't state what its name does.
func (a *Archive) damaged(name string) error {
	return a.named(name, fmt.Errorf("%w: it is not what its name says", seal.ErrDamaged))
}

// foreign says that an object is of a cluster where another one's should be.
func (a *Archive) foreign(name, of, instead string) error {
	return fmt.Errorf("%s in %s is %w: of cluster %s instead of %s", name, a.store, ErrForeign, of, instead)
}
