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

// Groups are the objects that become one each: neighbours that were created within the same span, which ended before a time. A
// single object is a group, too, so that each level has everything that is older. Left tells whether there are younger ones.
func Groups(objects []archive.Object, span time.Duration, before time.Time) (groups [][]archive.Object, left bool) {
	var open time.Time
	for _, object := range objects {
		slot := object.Modified.Truncate(span)
		if slot.Add(span).After(before) {
			left = true
			continue
		}
		if len(groups) == 0 || !slot.Equal(open) {
			groups = append(groups, nil)
			open = slot
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], object)
	}
	return groups, left
}
