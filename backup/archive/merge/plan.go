package merge

import (
	"time"

	"etcd-wrapper/backup/archive"
)

// Covered are the objects that a merged one holds to their end: two members that merge at once may cut differently. Where a
// segment ends only its manifest knows; merged objects end where segments do.
func Covered(objects []archive.Object, merged archive.Object) (held []archive.Object) {
	for _, object := range objects {
		ends := object.Next.IsZero() || object.Next.Compare(merged.Next) <= 0
		if ends && object.Start.Compare(merged.Start) >= 0 && object.Start.Compare(merged.Next) < 0 {
			held = append(held, object)
		}
	}
	return held
}

// few is how many objects a group has at least, where as many were created within a spell: every group costs a request that writes.
const (
	few   = 60
	spell = 30 * time.Minute
)

// Groups are the objects that become one each: neighbours that were created within the same span, which ended before a time, and
// where that are few, those of the next spans of the same spell. A single object is a group, too, so that each level has
// everything that is older. Left tells whether there are younger ones.
func Groups(objects []archive.Object, span time.Duration, before time.Time) (groups [][]archive.Object, left bool) {
	for i, object := range objects {
		if last := len(groups) - 1; last >= 0 && belongs(object, groups[last], span) {
			groups[last] = append(groups[last], object)
			continue
		}
		groups = append(groups, objects[i:i+1:i+1])
	}
	closed := groups[:0]
	for i, group := range groups {
		grows := i == len(groups)-1 && len(group) < few
		if newest := group[len(group)-1].Modified; isOver(newest, span, before) && (!grows || isOver(newest, max(span, spell), before)) {
			closed = append(closed, group)
		}
	}
	return closed, len(closed) < len(groups)
}

// belongs tells whether an object is of the same group as those before it.
func belongs(object archive.Object, group []archive.Object, span time.Duration) bool {
	last := group[len(group)-1].Modified
	return together(last, object.Modified, span) || len(group) < few && together(last, object.Modified, spell)
}

func together(a, b time.Time, span time.Duration) bool {
	return a.Truncate(span).Equal(b.Truncate(span))
}

// isOver tells whether the span in which something was created ended before a time.
func isOver(created time.Time, span time.Duration, before time.Time) bool {
	return !created.Truncate(span).Add(span).After(before)
}
