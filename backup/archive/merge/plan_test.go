package merge

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
)

// Two members that merge at once may cut differently: what ends behind a merged object is not in it, and must stay.
func TestWhatAMergedObjectHoldsOnlyTheBeginningOfIsNotCoveredByIt(t *testing.T) {
	at := func(revision int64) segment.Position { return segment.Position{Revision: revision} }
	long := archive.Object{Level: archive.Minute, Start: at(2), Next: at(9)}
	short := archive.Object{Level: archive.Minute, Start: at(2), Next: at(5)}
	hour := archive.Object{Level: archive.Hour, Start: at(2), Next: at(5)}
	assert.Equal(t, []archive.Object{short}, Covered([]archive.Object{long, short}, hour))
}
