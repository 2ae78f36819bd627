package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/format/seal"
)

// told is the last revision of the generation that names tell of.
func (g Generational) told() (last int64) {
	for _, full := range g.Fulls {
		last = max(last, full.told())
	}
	for _, object := range g.Objects {
		last = max(last, object.told())
	}
	return last
}

// told is the revision in the full's name.
func (f KeptFull) told() int64 {
	revision, _, _ := parseFull(f.Label) // a listing has no others
	return revision
}

// told is the last revision that the object's name tells of. That of a segment doesn't tell its own.
func (o Object) told() int64 {
	if o.Level == Segment {
		return o.Start.Revision - 1
	}
	return o.Next.Revision - 1
}

// lastChain is the newest one; the zero value if there is none.
func (g Generational) lastChain() (chain Chain) {
	if len(g.Chains) > 0 {
		chain = g.Chains[len(g.Chains)-1]
	}
	return chain
}

// beyond is why what lies behind a chain cannot be read, or does not belong to it; nil if nothing lies there. What nobody trusts
// is told first: it need not be damaged.
func (g Generational) beyond(chain Chain) error {
	why := []error{chain.Beyond}
	for _, full := range slices.Backward(g.Fulls) {
		if full.told() > chain.To {
			why = append(why, full.useless())
		}
	}
	for _, fault := range g.index.faults {
		if fault.From.Compare(chain.end) >= 0 && !fault.From.IsZero() {
			why = append(why, fault.Err)
		}
	}
	why = append(why, chain.hole(g.Objects))
	why = slices.DeleteFunc(why, func(err error) bool { return err == nil })
	if i := slices.IndexFunc(why, func(err error) bool { return errors.Is(err, seal.ErrUntrusted) }); i >= 0 {
		return why[i]
	}
	if len(why) == 0 {
		return nil
	}
	return why[0]
}

// lookBehind notes what lies behind the chains and is no part of them. Behind the last one it is all that cannot be read.
func (g Generational) lookBehind() {
	for i := range g.Chains {
		chain := &g.Chains[i]
		chain.Behind = cmp.Or(chain.Beyond, chain.index.faults.at(chain.end), chain.hole(chain.index.all()))
		if i == len(g.Chains)-1 {
			chain.Behind = g.beyond(*chain)
		}
	}
}

// hole is an ErrHole if some of the objects, which are in order, lie behind the chain's end: nothing leads there.
func (c Chain) hole(objects []Object) error {
	i := slices.IndexFunc(objects, func(o Object) bool { return o.Start.Compare(c.end) > 0 })
	if i < 0 || len(c.Fulls) == 0 {
		return nil
	}
	return fmt.Errorf("%w: nothing begins at %s, and %s follows", ErrHole, c.end, objects[i].Name())
}

// useless is why no restore begins with the full; nil if one may.
func (f KeptFull) useless() error {
	switch {
	case f.Err != nil:
		return f.Err
	case f.fault != nil:
		return f.fault
	case !f.Usable():
		return fmt.Errorf("full %s failed its test restore: %s", f.Label, f.Verdict.Why)
	}
	return nil
}

// reaches is an error if something that cannot be read may have come by a target's time.
func (a *Archive) reaches(ctx context.Context, chain Chain, objects []Object, target Target, beyond error) error {
	if beyond == nil {
		return nil
	}
	ended, err := a.ended(ctx, chain, objects)
	if err == nil && target.Time.After(ended) {
		err = fmt.Errorf("%s is %w: revision %d was the present at %s, and what came then cannot be read: %w", target, ErrNotKept,
			chain.To, ended.UTC().Format(time.RFC3339), beyond)
	}
	return err
}

// ended is when a chain's last revision was the present for certain. Chain.End may be later: it is when a merged object was made.
func (a *Archive) ended(ctx context.Context, chain Chain, objects []Object) (at time.Time, err error) {
	for _, full := range chain.Fulls {
		at = later(at, full.Time)
	}
	for _, object := range slices.Backward(objects) {
		marked := time.Time{}
		for manifest, err := range a.manifests(ctx, object) {
			if err != nil {
				return at, faulty(err, object.Name(), object.Start)
			}
			marked = later(marked, manifest.To)
		}
		if !marked.IsZero() {
			return later(at, marked), nil
		}
	}
	return at, nil
}
