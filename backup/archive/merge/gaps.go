package merge

import (
	"slices"

	"etcd-wrapper/backup/archive"
)

// newGaps counts the places, each once, where a merged object ends and nothing begins, though something lies behind. Within what
// becomes one object merging finds out.
func (m *Merger) newGaps(levels map[archive.Level][]archive.Object) (count int) {
	merged := slices.Concat(levels[archive.Minute], levels[archive.Hour])
	all := slices.Concat(levels[archive.Segment], merged)
	for _, object := range merged {
		end := object.Next
		goesOn := func(o archive.Object) bool {
			return o.Start == end || o.Start.Compare(end) < 0 && o.Next.Compare(end) > 0
		}
		behind := func(o archive.Object) bool { return o.Start.Compare(end) > 0 }
		if !m.gaps[end] && !slices.ContainsFunc(all, goesOn) && slices.ContainsFunc(all, behind) {
			m.gaps[end] = true
			count++
		}
	}
	return count
}
