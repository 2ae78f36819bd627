package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// A store may answer well and have lost what it was given. Whoever writes does not look back.
func TestASegmentThatTheStoreHasLostIsNoticedWhileOthersAreMerged(t *testing.T) {
	s := newStand(t)
	s.store.Now = func() time.Time { return time.Now().Add(-40 * time.Minute) } // what is stored is old enough at once
	s.run()
	for i := range 6 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	s.end()
	objects, err := archive.New(s.store, keys).Objects(t.Context(), 1, archive.Segment, format.Position{})
	require.NoError(t, err)
	require.NoError(t, s.store.Delete(t.Context(), objects[len(objects)-3].Name()))
	s.run()
	s.awaitStored(s.put("a", "more"))
	s.eventually(func(f Facts) bool { return f.Holes == 1 }, "it is noticed")
}
