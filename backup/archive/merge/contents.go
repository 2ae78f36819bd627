package merge

import (
	"context"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// contents are what a merged object was seen to hold when it was made, or read to its end. A name says nothing: whoever may put
// objects chooses it.
type contents struct {
	size     int64                               // bytes of the object
	segments map[format.Position]format.Manifest // none if the object is not to be believed
	compared map[string]bool                     // objects that were read, too, by name, and whether this one holds them
}

func newContents(size int64, segments []format.Manifest, of ...archive.Object) *contents {
	c := &contents{size: size, segments: map[format.Position]format.Manifest{}, compared: map[string]bool{}}
	for _, manifest := range segments {
		c.segments[manifest.Position] = manifest
	}
	for _, source := range of {
		c.compared[source.Name()] = true
	}
	return c
}

// has tells whether these are among the segments, with the same rows and the same of everything else.
func (c *contents) has(segments []format.Manifest) bool {
	for _, manifest := range segments {
		own, there := c.segments[manifest.Position]
		if !there || own.After != manifest.After || own.Body != manifest.Body {
			return false
		}
	}
	return true
}

// contents returns what a merged object holds, which is read unless this process has made or read it.
func (m *Merger) contents(ctx context.Context, merged archive.Object) (*contents, error) {
	if known := m.read[merged.Name()]; known != nil && known.size == merged.Size {
		return known, nil
	}
	segments, err := m.archive.Examine(ctx, merged)
	if err != nil && !archive.Unusable(err) {
		return nil, err
	}
	m.read[merged.Name()] = newContents(merged.Size, segments)
	return m.read[merged.Name()], nil
}

// holds tells whether a merged object holds everything that another object does. Both were read to their ends then, and believed.
func (m *Merger) holds(ctx context.Context, merged, source archive.Object) (bool, error) {
	c, err := m.contents(ctx, merged)
	if err != nil {
		return false, err
	}
	held, known := c.compared[source.Name()]
	if _, begins := c.segments[source.Start]; known || !begins {
		return held, nil
	}
	segments, err := m.archive.Examine(ctx, source)
	if err != nil && !archive.Unusable(err) {
		return false, err
	}
	c.compared[source.Name()] = err == nil && c.has(segments)
	return c.compared[source.Name()], nil
}

// notMerged are the objects of a level that no object of the next one holds. What cannot be believed holds nothing.
func (m *Merger) notMerged(ctx context.Context, objects, merged []archive.Object) (left []archive.Object, err error) {
	held := map[string]bool{}
	for _, one := range merged {
		covered := Covered(objects, one)
		if len(covered) == 0 {
			continue
		}
		c, err := m.contents(ctx, one)
		if err != nil {
			return nil, err
		}
		for _, object := range covered {
			_, begins := c.segments[object.Start]
			held[object.Name()] = held[object.Name()] || begins
		}
	}
	for _, object := range objects {
		if !held[object.Name()] {
			left = append(left, object)
		}
	}
	return left, nil
}
