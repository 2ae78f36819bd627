package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// found is what a look at the store showed.
type found struct {
	archive    *archive.Archive
	abilities  store.Abilities
	generation archive.Generation
	head       archive.Head

	vet   bool // whether the generation is to be looked at, too
	known end
}

// end is what was at the end of the chain when it was last looked at.
type end struct {
	last segment.Position // of the newest segment; zero if it is unknown
	full string           // the newest; empty if it is unknown
}

// find asks the store for what is not known yet, and for the head in any case. It begins the history of a store that has none
// if this is the member to do so.
func (f found) find(ctx context.Context, open func(context.Context) (*archive.Archive, error), cluster string, begin bool, at time.Time) (found, error) {
	var err error
	if f.archive == nil {
		if f.archive, err = open(ctx); err != nil {
			return found{}, err
		}
	}
	if f.vet && f.generation.Number != 0 {
		err = f.ours(ctx)
		if errors.Is(err, store.ErrNotFound) {
			f.generation, err = archive.Generation{}, nil // to be begun anew
		}
		if err != nil {
			return f, err
		}
	}
	if f.generation.Number == 0 {
		if err := f.identify(ctx, cluster, begin, at); err != nil {
			return f, err
		}
	}
	if f.head, err = f.archive.Head(ctx, f.generation.Number); err == nil {
		err = f.head.Damaged
	}
	if err == nil {
		err = f.believe(ctx)
	}
	return f, err
}

func (f *found) identify(ctx context.Context, cluster string, begin bool, at time.Time) (err error) {
	if begin {
		f.generation, err = f.archive.Found(ctx, cluster, at)
	} else {
		f.generation, err = f.begun(ctx, cluster)
	}
	if err == nil {
		err = f.ours(ctx)
	}
	if err != nil {
		f.generation = archive.Generation{}
		return err
	}
	f.abilities, err = store.Probe(ctx, f.archive.Store())
	return err
}

// ours makes sure that the generation is there, this cluster's, and the newest, and that this process may add to it.
func (f *found) ours(ctx context.Context) error {
	if err := f.archive.Still(ctx, f.generation); err != nil {
		return err
	}
	generations, err := f.archive.Generations(ctx)
	if err != nil || len(generations) == 0 {
		return err
	}
	newest := generations[len(generations)-1]
	if newest.Number > f.generation.Number {
		return fmt.Errorf("%w: this is cluster %s of generation %d, and %s went on with generation %d of cluster %s, which was restored from it; stop this cluster, or point --backup-store at another place",
			errSuperseded, f.generation.Cluster, f.generation.Number, f.archive, newest.Number, newest.Cluster)
	}
	return f.archive.MayAdd(newest)
}

// believe makes sure that the head is this cluster's, and that nothing is missing that is known to be there: stores may list late,
// or lose a page. Nobody begins anew, or again from an older place, because of that.
func (f *found) believe(ctx context.Context) error {
	head := f.head
	if !head.Empty() && head.Cluster != f.generation.Cluster {
		return fmt.Errorf("%s is %w: it has backups of cluster %s, and this is %s", f.archive, archive.ErrForeign, head.Cluster, f.generation.Cluster)
	}
	err, what := error(store.ErrNotFound), ""
	if f.known.full != "" && (head.Empty() || head.Full.Name() < f.known.full) {
		what = "full " + f.known.full
		_, err = f.archive.Full(ctx, f.generation.Number, f.known.full)
		if head.Empty() && errors.Is(err, store.ErrNotFound) {
			return nil // whatever was stored since leads nowhere
		}
	}
	if isMissing(err) && head.Position.Compare(f.known.last) <= 0 {
		what = "segment " + f.known.last.String()
		_, err = f.archive.Manifest(ctx, f.generation.Number, f.known.last)
	}
	if err == nil {
		err = &store.Unavailable{Cause: fmt.Errorf("its listing ends at revision %d, although %s is there", max(0, head.Revision()), what)}
	}
	if isMissing(err) {
		return nil
	}
	return err
}

// isMissing tells whether an object is gone, or was overlooked since it cannot be believed.
func isMissing(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, seal.ErrDamaged) || errors.Is(err, seal.ErrUntrusted)
}

// begun is the generation that another member has begun. store.ErrNotFound says that none has; between the birth certificate and
// the first generation is an instant at which somebody may have died.
func (f *found) begun(ctx context.Context, cluster string) (archive.Generation, error) {
	generation, err := f.archive.GenerationOf(ctx, cluster)
	if !errors.Is(err, archive.ErrForeign) {
		return generation, err
	}
	if certificate, failed := f.archive.Cluster(ctx); failed == nil && certificate.Cluster == cluster {
		return generation, fmt.Errorf("%w: the first generation of cluster %s", store.ErrNotFound, cluster)
	}
	return generation, err
}

// errSuperseded says that a restore took the place of this cluster.
var errSuperseded = errors.New("backups of this cluster have ended")
