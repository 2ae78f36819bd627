package retention

import (
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
)

// segments is one item for those that lie wholly before the floor, and one for the rest. The name of a segment does not tell where it
// ends, and what others are called does not, either: one that was not read stays.
func segments(g archive.Generational, floor segment.Position) (items []Item) {
	goes := Item{Kind: Segments, Generation: g.Number, Goes: true, Why: "before the full that the window of points begins with"}
	stays := Item{Kind: Segments, Generation: g.Number, Why: "within points"}
	if floor.IsZero() {
		stays.Why = notCovered
	}
	for _, object := range g.Objects {
		item := &stays
		if !object.Next.IsZero() && object.Next.Compare(floor) <= 0 {
			item = &goes
		}
		item.add(object)
	}
	for _, item := range []Item{goes, stays} {
		if item.Objects > 0 {
			items = append(items, item)
		}
	}
	return items
}

func (i *Item) add(object archive.Object) {
	if i.Objects == 0 {
		i.Name, i.Revision = object.Name(), object.Start.Revision
	}
	i.Objects++
	i.Bytes += object.Size
	i.names = append(i.names, object.Name())
}

// remains is one item for objects of fulls that never became any, so old that nobody makes them any longer.
func (p Plan) remains(g archive.Generational, floor segment.Position) []Item {
	item := Item{Kind: Remains, Generation: g.Number, Goes: true, Why: "of a full that was never finished"}
	for _, orphan := range g.Orphans {
		label, _, _ := strings.Cut(strings.TrimPrefix(orphan.Name, archive.GenerationPrefix(g.Number)+"full/"), "/")
		revision, at := parseLabel(label)
		if at.IsZero() || revision >= floor.Revision || !latest(at, orphan.Stored).Before(p.From.Add(-remainsAfter)) {
			continue // what is not ours, or may still be made
		}
		if item.Objects++; item.Objects == 1 {
			item.Name, item.Revision, item.Time = orphan.Name, revision, at
		}
		item.Bytes += orphan.Size
		item.names = append(item.names, orphan.Name)
	}
	if item.Objects == 0 {
		return nil
	}
	return []Item{item}
}

// ago is for sentences.
func ago(now, at time.Time) string { return now.Sub(at).Round(time.Second).String() }
