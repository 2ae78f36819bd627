package backups

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrAnother says that a place has backups of another cluster, or something else under a name that is to be copied.
var ErrAnother = errors.New("is not a copy of the store")

// Copied is what backup copy tells, and with -o json its document.
type Copied struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Objects int    `json:"objects"` // that were copied now
	Bytes   int64  `json:"bytes"`   // of these
	Kept    int    `json:"kept"`    // that were there already
}

// Print prints the document for people.
func (c Copied) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s has all of %s: %s copied now and read back, %s, and %s that were there\n",
		c.To, c.From, count(c.Objects, "object"), terminal.Size(c.Bytes), count(c.Kept, "object"))
	return err
}

// Copy copies every object of the settings' store that another place lacks, reads each back and compares it. It goes on where it was cut
// off. With follow it does so again after each such pause until ctx ends, which is no error then. ErrAnother says that the place has
// something else. What the store has let go of stays in the copy.
func Copy(ctx context.Context, settings Settings, to store.Store, follow time.Duration, meter *Meter) (Copied, error) {
	defer meter.Clear()
	c := &copying{from: settings.Store, to: to, meter: meter}
	c.told = Copied{From: c.from.String(), To: to.String()}
	for {
		err := c.untilEqual(ctx)
		if err != nil && (follow == 0 || ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable)) {
			return c.told, err
		}
		if follow == 0 {
			return c.told, nil
		}
		select {
		case <-ctx.Done():
			return c.told, nil
		case <-time.After(follow):
		}
	}
}

// copying is a copy under way.
type copying struct {
	from, to store.Store
	meter    *Meter
	there    map[string]int64 // bytes of what the other place has, by name; nil before it was listed
	told     Copied
}

// untilEqual copies until a pass finds nothing new: the cluster writes meanwhile, and merges what was written.
func (c *copying) untilEqual(ctx context.Context) error {
	for {
		copied, err := c.pass(ctx)
		if err != nil || copied == 0 {
			return err
		}
	}
}

// pass copies what is listed, in the order of names. Whoever is cut off leaves a part that can be read: a full snapshot counts by its
// manifest, which comes after its data, and segments come in their order.
func (c *copying) pass(ctx context.Context) (copied int, err error) {
	first := c.there == nil
	if first {
		if err := c.list(ctx); err != nil {
			return 0, err
		}
	}
	for object, err := range c.from.List(ctx, "", "") {
		if err != nil {
			return copied, err
		}
		size, has := c.there[object.Name]
		switch {
		case strings.HasPrefix(object.Name, "probe/"):
		case has && size != object.Size:
			return copied, fmt.Errorf("%s %w %s: %s has %d bytes there and %d here; take another place", c.to, ErrAnother, c.from, object.Name, size, object.Size)
		case has && first:
			if err := c.meet(ctx, object.Name); err != nil {
				return copied, err
			}
		case has:
		default:
			is, err := c.copy(ctx, object)
			if err != nil {
				return copied, err
			}
			if is {
				copied++
			}
		}
	}
	return copied, nil
}

// list lists the other place.
func (c *copying) list(ctx context.Context) error {
	there := map[string]int64{}
	for object, err := range c.to.List(ctx, "", "") {
		if err != nil {
			return err
		}
		there[object.Name] = object.Size
	}
	c.there = there
	return nil
}

// meet counts what was there before, and compares what says whose it is.
func (c *copying) meet(ctx context.Context, name string) error {
	c.told.Kept++
	if name != archive.ClusterName {
		return nil
	}
	here, err := digest(ctx, c.from, name)
	if err != nil {
		return err
	}
	there, err := digest(ctx, c.to, name)
	if err == nil && there != here {
		err = fmt.Errorf("%s %w %s: %s differs; take another place", c.to, ErrAnother, c.from, name)
	}
	return err
}

// copy copies an object and reads it back. One that has gone meanwhile was merged, or let go of.
func (c *copying) copy(ctx context.Context, object store.Object) (copied bool, err error) {
	content, err := c.from.Get(ctx, object.Name, 0, -1)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer content.Close()
	put, err := store.PutOnce(ctx, c.to, object.Name, content)
	if err != nil {
		return false, fmt.Errorf("cannot copy %s: %w", object.Name, err)
	}
	switch there, err := digest(ctx, c.to, object.Name); {
	case err != nil:
		return false, err
	case there != put:
		return false, fmt.Errorf("%s %w %s: %s was copied, and other bytes come back", c.to, ErrAnother, c.from, object.Name)
	}
	c.there[object.Name] = put.Size
	c.told.Objects++
	c.told.Bytes += put.Size
	c.meter.Show("copied", c.told.Bytes, 0)
	return true, nil
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
		return store.Digest{}, fmt.Errorf("cannot read %s of %s: %w", name, of, err)
	}
	return store.Digest{SHA256: [sha256.Size]byte(sum.Sum(nil)), Size: size}, nil
}
