package backups

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/clock"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrNotCopy reports that a location is not a copy of the store: either Copy did not create the objects in it, or
// another process has since written to it.
var ErrNotCopy = errors.New("is not a copy of")

// CopyResult is the result of backup copy. The -o json flag prints it.
type CopyResult struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Objects int    `json:"objects"` // number of objects copied by this run
	Bytes   int64  `json:"bytes"`   // bytes copied by this run
	Kept    int    `json:"kept"`    // number of objects that were already in the copy
}

// Print prints the result as text.
func (c CopyResult) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s is an up-to-date copy of %s: %s copied and verified (%s), %s already present\n",
		c.To, c.From, count(c.Objects, "object"), terminal.Size(c.Bytes), count(c.Kept, "object"))
	return err
}

// Copy copies the objects that are missing from another location, and reads each one back to compare it. Copy resumes
// an interrupted copy. If follow is not 0, Copy repeats at that interval until ctx is done, and then returns no
// error. Objects that have been deleted from the store are kept in the copy.
//
// Copy never mixes two histories: it returns ErrNotCopy if the location contains backups that Copy did not create, or
// if another process has written to the copy. The object copyMark distinguishes a copy from the store of a running
// cluster.
func Copy(ctx context.Context, settings Settings, to store.Store, follow time.Duration, meter *Meter) (CopyResult, error) {
	defer meter.Clear()
	c := &copier{from: settings.Store, to: to, meter: meter, checked: map[string]bool{}}
	c.result = CopyResult{From: c.from.String(), To: to.String()}
	for {
		err := c.untilEqual(ctx)
		if err != nil && (follow == 0 || ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable)) {
			return c.result, err
		}
		if follow == 0 {
			return c.result, nil
		}
		if clock.Sleep(ctx, follow) != nil {
			return c.result, nil
		}
	}
}

// A copier copies a store to another location.
type copier struct {
	from, to store.Store
	meter    *Meter
	resumed  bool            // the first pass, which counts the objects that are already in the copy, is complete
	checked  map[string]bool // names of the objects in the copy that have been compared with the store
	stale    bool            // another pass is needed: an object was deleted from the store before it could be compared
	result   CopyResult
}

// untilEqual calls pass until there is nothing left to copy. A single pass may not be enough, because the cluster
// keeps writing and merging segments.
func (c *copier) untilEqual(ctx context.Context) error {
	for {
		copied, err := c.pass(ctx)
		if err != nil || copied == 0 && !c.stale {
			return err
		}
	}
}

// pass copies objects in name order, which keeps an interrupted copy readable: the data of a full snapshot is copied
// before its manifest, and segments are copied in sequence.
func (c *copier) pass(ctx context.Context) (copied int, err error) {
	c.stale = false
	// The copy is listed first: otherwise, an object stored and copied between the two listings would seem to be only
	// in the copy.
	copies, err := list(ctx, c.to)
	if err != nil {
		return 0, err
	}
	if err := c.mark(ctx, copies); err != nil {
		return 0, err
	}
	originals, err := list(ctx, c.from)
	if err != nil {
		return 0, err
	}
	if !c.resumed {
		if err := c.checkDistinct(ctx, originals); err != nil {
			return 0, err
		}
	}
	if err := c.compare(ctx, newHistory(originals), newHistory(copies)); err != nil {
		return 0, err
	}
	for _, name := range slices.Sorted(maps.Keys(originals)) {
		if _, has := copies[name]; has || strings.HasPrefix(name, "probe/") || name == copyMark {
			if has && !c.resumed && name != copyMark {
				c.result.Kept++
			}
			continue
		}
		found, err := c.copy(ctx, name)
		if err != nil {
			return copied, err
		}
		if found {
			copied++
		}
	}
	c.resumed = true
	return copied, nil
}

// list returns the size of every object, keyed by name.
func list(ctx context.Context, s store.Store) (map[string]int64, error) {
	sizes := map[string]int64{}
	for object, err := range s.List(ctx, "", "") {
		if err != nil {
			return nil, err
		}
		sizes[object.Name] = object.Size
	}
	return sizes, nil
}

// copy copies an object and reads it back. It returns false if the object no longer exists because it has been merged
// or pruned since the store was listed.
func (c *copier) copy(ctx context.Context, name string) (copied bool, err error) {
	content, err := c.from.Get(ctx, name, 0, -1)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer content.Close()
	put, err := store.PutOnce(ctx, c.to, name, content)
	switch {
	case errors.Is(err, store.ErrExists): // another process has created the object since the copy was listed
		return false, c.contentError(name)
	case err != nil:
		return false, fmt.Errorf("cannot copy %s: %w", name, err)
	}
	switch stored, err := digest(ctx, c.to, name); {
	case err != nil:
		return false, err
	case stored != put:
		return false, fmt.Errorf("%s: the copy of %s is %w", c.to, name, format.ErrDamaged)
	}
	c.result.Objects++
	c.result.Bytes += put.Size
	c.meter.Show("copied", c.result.Bytes, 0)
	return true, nil
}

// contentError returns the error for an object whose content differs between the store and the copy.
func (c *copier) contentError(name string) error {
	return fmt.Errorf("%s %w %s: %s differs; copy to another location", c.to, ErrNotCopy, c.from, name)
}

func digest(ctx context.Context, of store.Store, name string) (store.Digest, error) {
	content, err := of.Get(ctx, name, 0, -1)
	if err != nil {
		return store.Digest{}, err
	}
	defer content.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, content)
	if err != nil {
		return store.Digest{}, fmt.Errorf("cannot read %s in %s: %w", name, of, err)
	}
	return store.Digest{SHA256: [sha256.Size]byte(sum.Sum(nil)), Size: size}, nil
}
