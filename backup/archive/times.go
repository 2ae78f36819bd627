package archive

import (
	"context"
	"fmt"
	"sort"
	"time"

	"etcd-wrapper/backup/format/segment"
)

// at finds the last marker up to a time, in objects behind a full of that time or before. The full itself is one, a
// second later than it says.
func (a *Archive) at(ctx context.Context, objects []Object, full Full, t time.Time) (known segment.Marker, err error) {
	known = segment.Marker{Revision: full.Revision, Time: full.Since()}
	i := sort.Search(len(objects), func(i int) bool {
		if err != nil {
			return true
		}
		var from time.Time
		from, err = a.from(ctx, objects[i:], full.Cluster)
		return from.IsZero() || from.After(t)
	})
	if err != nil {
		return known, err
	}
	by := t
	if there, err := a.there(ctx, objects, i, t); err != nil {
		return known, err
	} else if there > i {
		i, by = there, farAway // all of them, whatever their markers say
		defer func() { known.Time = earlier(known.Time, t) }()
	}
	if i == 0 {
		return known, nil
	}
	last := objects[i-1]
	if err := a.joins(ctx, last, objects[i:], full.Cluster); err != nil {
		return known, err
	}
	found, ok, err := a.segmentAt(ctx, last, by)
	if err != nil || !ok {
		return known, faulty(err, last.Name(), last.Start)
	}
	marker, err := a.markerAt(ctx, last, found, by)
	err = faulty(err, last.Name(), last.Start)
	if marker.Revision > known.Revision {
		known = marker
	}
	return known, err
}

// joins is a Fault if something lay between an object and those that follow: it may have been there at the time. Names of segments
// don't show it.
func (a *Archive) joins(ctx context.Context, last Object, behind []Object, cluster string) error {
	if len(behind) == 0 {
		return nil
	}
	end, _, err := a.end(ctx, last, cluster)
	if err != nil {
		return faulty(err, last.Name(), last.Start)
	}
	if behind[0].Start.Compare(end) > 0 {
		return faulty(fmt.Errorf("%w: nothing in %s begins at %s", ErrHole, a.store, end), "", end)
	}
	return nil
}

// farAway is later than any marker.
var farAway = time.Unix(1<<40, 0)

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// apart is how far clocks may lie apart before that is worth a thought.
const apart = time.Minute

// there is how many of the objects the store had at a time by its own clock, if that is more than i, which their markers tell:
// then these are of a member whose clock was ahead. A store's clock may be wrong as well, so it is believed only where others went on
// from that member's times, which never go back: theirs stand still, far ahead of the store's.
func (a *Archive) there(ctx context.Context, objects []Object, i int, t time.Time) (int, error) {
	there := i
	for j := i; j < len(objects); j++ {
		if !objects[j].Modified.After(t) {
			there = j + 1
		}
	}
	if there == i {
		return i, nil
	}
	var before time.Time
	for _, object := range objects[i:] {
		manifest, err := a.firstManifest(ctx, object)
		if err != nil {
			return i, faulty(err, object.Name(), object.Start)
		}
		if !before.IsZero() && manifest.From.Equal(before) && manifest.From.Sub(object.Modified) > apart {
			return there, nil
		}
		before = manifest.From
	}
	return i, nil
}

// from is when the first of a cluster's objects begins that tells it; zero if none does. What another one has left among them tells the
// times of that one's revisions.
func (a *Archive) from(ctx context.Context, objects []Object, cluster string) (time.Time, error) {
	for _, object := range objects {
		manifest, err := a.firstManifest(ctx, object)
		if err != nil || !manifest.From.IsZero() && manifest.Cluster == cluster {
			return manifest.From, faulty(err, object.Name(), object.Start)
		}
	}
	return time.Time{}, nil
}

// segmentAt finds the last segment of an object that begins at a time or before.
func (a *Archive) segmentAt(ctx context.Context, object Object, t time.Time) (last located, found bool, err error) {
	for next, err := range a.manifests(ctx, object) {
		if err != nil {
			return located{}, false, err
		}
		if next.From.After(t) {
			break
		}
		if !next.From.IsZero() {
			last, found = next, true
		}
	}
	return last, found, nil
}

// markerAt reads the last marker of a segment that is not after a time.
func (a *Archive) markerAt(ctx context.Context, object Object, in located, t time.Time) (last segment.Marker, err error) {
	for record, err := range a.records(ctx, object, in) {
		if err != nil {
			return last, err
		}
		if marker, is := record.(*segment.Marker); is && !marker.Time.After(t) {
			last = *marker
		}
	}
	return last, nil
}
