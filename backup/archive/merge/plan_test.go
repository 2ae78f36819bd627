package merge

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// Two members that merge at once may cut differently: what ends behind a merged object is not in it, and must stay.
func TestWhatAMergedObjectHoldsOnlyTheBeginningOfIsNotCoveredByIt(t *testing.T) {
	at := func(revision int64) format.Position { return format.Position{Revision: revision} }
	long := archive.Object{Level: archive.Minute, Start: at(2), Next: at(9)}
	short := archive.Object{Level: archive.Minute, Start: at(2), Next: at(5)}
	hour := archive.Object{Level: archive.Hour, Start: at(2), Next: at(5)}
	assert.Equal(t, []archive.Object{short}, Covered([]archive.Object{long, short}, hour))
}

// Each merged object costs a request that writes: an idle cluster, which only shows that it lives, makes two in an hour.
func TestWhatIsWrittenOftenIsMergedByTheMinuteAndWhatIsRareByTheHalfHour(t *testing.T) {
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		every  time.Duration
		at     time.Duration // after noon
		groups []int
		left   bool
	}{
		"every second":                           {time.Second, 3 * time.Minute, []int{60, 60, 60}, false},
		"every second, the last minute not over": {time.Second, 3*time.Minute - time.Second, []int{60, 60}, true},
		"every 40 s, the half hour not over":     {40 * time.Second, 29 * time.Minute, nil, true},
		"every 40 s":                             {40 * time.Second, 60 * time.Minute, []int{45, 45}, false},
		"every five minutes":                     {5 * time.Minute, 61 * time.Minute, []int{6, 6}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []archive.Object
			for at := time.Duration(0); at < c.at; at += c.every {
				objects = append(objects, archive.Object{Modified: noon.Add(at)})
			}
			groups, left := Groups(objects, time.Minute, noon.Add(c.at))
			var sizes []int
			for _, group := range groups {
				sizes = append(sizes, len(group))
			}
			assert.Equal(t, c.groups, sizes)
			assert.Equal(t, c.left, left)
		})
	}
}
