package archive

import (
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/backup/store"
)

// Examined is History with what names don't tell: where segments end that are not merged yet. So it knows the chains apart between which
// one is missing, or damaged. It costs a request for each of them that the archive has not examined before.
func (a *Archive) Examined(ctx context.Context) (*History, error) {
	var known faults
	a.ends.forget()
	for merged := 0; ; {
		history, err := a.historyWithout(ctx, known)
		if err != nil {
			return nil, err
		}
		found, err := a.holes(ctx, history)
		if errors.Is(err, store.ErrNotFound) && merged < listings {
			merged++
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			a.tellEnds(history)
			return history, nil
		}
		known = append(known, found...)
	}
}

// tellEnds has the segments of a history tell where they end, as far as they were read.
func (a *Archive) tellEnds(history *History) {
	for g := range history.Generations {
		objects := history.Generations[g].Objects
		for i, object := range objects {
			if object.Level == Segment {
				objects[i].Next, _ = a.ends.of(object.stored())
			}
		}
	}
}

// holes are those within the chains.
func (a *Archive) holes(ctx context.Context, history *History) (all faults, err error) {
	for _, generation := range history.Generations {
		for _, chain := range generation.Chains {
			found := make(faults, len(chain.Objects))
			err := each(len(found), func(i int) (err error) {
				found[i], err = a.missing(ctx, chain.Objects[i:], generation.Cluster)
				return err
			})
			if err != nil {
				return nil, err
			}
			for _, fault := range found {
				if fault != nil {
					all = append(all, fault)
				}
			}
		}
	}
	return all, nil
}

// missing is why the second of some objects does not follow the first one; nil if it does.
func (a *Archive) missing(ctx context.Context, objects []Object, cluster string) (*Fault, error) {
	if len(objects) < 2 || objects[0].Level != Segment {
		return nil, nil
	}
	end, err := a.endOf(ctx, objects[0], cluster)
	switch {
	case errors.Is(err, ErrForeign): // it stands between those of the chain
		return &Fault{Object: objects[0].Name(), Err: err}, nil
	case Disbelieved(err):
		return &Fault{Object: objects[0].Name(), From: objects[0].Start, Err: err}, nil
	case err != nil || objects[1].Start.Compare(end) <= 0:
		return nil, err
	}
	return &Fault{From: end, Err: fmt.Errorf("%w: nothing in %s begins at %s, and %s follows", ErrHole, a.store, end, objects[1].Name())}, nil
}
