package archive

import (
	"context"
	"sort"
	"time"

	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/segment"
)

// at finds the last marker up to a time, in objects behind a full of that time or before. The full itself is one.
func (a *Archive) at(ctx context.Context, objects []Object, full Full, t time.Time) (known segment.Marker, err error) {
	known = segment.Marker{Revision: full.Revision, Time: full.Time}
	i := sort.Search(len(objects), func(i int) bool {
		if err != nil {
			return true
		}
		var from time.Time
		from, err = a.from(ctx, objects[i:])
		return from.IsZero() || from.After(t)
	})
	if err != nil || i == 0 {
		return known, err
	}
	last := objects[i-1]
	found, ok, err := a.segmentAt(ctx, last, t)
	if err != nil || !ok {
		return known, faulty(err, last.Name(), last.Start)
	}
	marker, err := a.markerAt(ctx, last, found, t)
	err = faulty(err, last.Name(), last.Start)
	if marker.Revision > known.Revision {
		known = marker
	}
	return known, err
}

// from is when the first of the objects begins that tells it; zero if none does.
func (a *Archive) from(ctx context.Context, objects []Object) (time.Time, error) {
	for _, object := range objects {
		manifest, err := a.firstManifest(ctx, object)
		if err != nil || !manifest.From.IsZero() {
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
	content, err := a.fetch(ctx, object.Name(), in.offset, nil)
	if err != nil {
		return last, err
	}
	defer content.Close()
	reader := segment.NewReader(content, a.keys)
	if _, err := reader.Next(); err != nil {
		return last, a.named(object.Name(), err)
	}
	for {
		record, err := reader.Record()
		if seal.Ended(err) {
			return last, nil
		}
		if err != nil {
			return last, a.named(object.Name(), err)
		}
		if marker, is := record.(*segment.Marker); is && !marker.Time.After(t) {
			last = *marker
		}
	}
}
