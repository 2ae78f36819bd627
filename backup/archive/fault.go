package archive

import (
	"context"
	"errors"
	"slices"

	"etcd-wrapper/backup/format/segment"
)

// Fault is an error about something on a path that is missing, damaged or not to be believed.
type Fault struct {
	Object string           // its name; empty if nothing is there
	From   segment.Position // what is before it was read; zero for a full
	Err    error
}

// Error is for people.
func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns what it is about.
func (f *Fault) Unwrap() error { return f.Err }

// faulty makes a Fault of an error if it is about what lies in the store, and not about getting there.
func faulty(err error, object string, from segment.Position) error {
	if Unusable(err) {
		return &Fault{Object: object, From: from, Err: err}
	}
	return err
}

// faults are those by which no way leads.
type faults []*Fault

// with adds one; false if it is there already.
func (f faults) with(fault *Fault) (faults, bool) {
	known := slices.ContainsFunc(f, func(o *Fault) bool { return o.Object == fault.Object && o.From == fault.From })
	return append(slices.Clone(f), fault), !known
}

// of is why an object is of no use; nil if nothing is known against it.
func (f faults) of(object string) error {
	if i := slices.IndexFunc(f, func(o *Fault) bool { return o.Object == object }); i >= 0 {
		return f[i].Err
	}
	return nil
}

// at is what is wrong at a position; nil if nothing is known.
func (f faults) at(position segment.Position) error {
	if i := slices.IndexFunc(f, func(o *Fault) bool { return o.From == position }); i >= 0 {
		return f[i].Err
	}
	return nil
}

// between tells whether something between two positions cannot be read. Names of segments don't show it.
func (f faults) between(a, b segment.Position) bool {
	return slices.ContainsFunc(f, func(o *Fault) bool { return o.From.Compare(a) > 0 && o.From.Compare(b) < 0 })
}

// Instead finds another way to where a path leads, after a Fault had kept it from being read: from an older full, or by other
// objects. It may end earlier than the one before, at the last revision that can be read, if that led to the latest revision, or to
// a full that was named; compare the two to say what is lost. ErrNotKept says that there is no other way. Whether it can be gone is
// not known before it is read. A cause that is no Fault is returned as it is.
func (a *Archive) Instead(ctx context.Context, path Path, cause error) (Path, error) {
	var fault *Fault
	if !errors.As(cause, &fault) {
		return Path{}, cause
	}
	known, another := path.faults.with(fault)
	if !another {
		return Path{}, cause
	}
	if path.named() {
		return a.insteadOfFull(ctx, path, known)
	}
	target := path.target
	target.Generation = path.Generation.Number
	if !target.Latest() {
		target.Revision = path.Revision
	}
	other, err := a.find(ctx, target, known)
	if target.Latest() && !fault.From.IsZero() && (errors.Is(err, ErrNotKept) || err == nil && other.Revision < fault.From.Revision-1) {
		return path.upTo(fault.From, known), nil
	}
	if other.Revision == path.Revision {
		other.Time = path.Time
	}
	return other, err
}

// named tells whether it is a full alone, which nobody has looked for.
func (p Path) named() bool { return p.index == nil }

// insteadOfFull finds another way to a full's revision, or to the last one before it.
func (a *Archive) insteadOfFull(ctx context.Context, path Path, known faults) (Path, error) {
	exact := Target{Generation: path.Generation.Number, Revision: path.Revision}
	other, err := a.find(ctx, exact, known)
	if !errors.Is(err, ErrNotKept) {
		return other, err
	}
	latest, none := a.find(ctx, Target{Generation: path.Generation.Number}, known)
	if none != nil || latest.Revision > path.Revision {
		return Path{}, err
	}
	return latest, nil
}

// upTo is the part of a path that was read before something was missing.
func (p Path) upTo(end segment.Position, known faults) Path {
	p.Revision, p.end, p.faults, p.Beyond = end.Revision-1, end, known, known[len(known)-1].Err
	p.Objects = slices.DeleteFunc(slices.Clone(p.Objects), func(o Object) bool { return o.Start.Compare(end) >= 0 })
	return p
}
