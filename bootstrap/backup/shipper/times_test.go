package shipper

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/archive"
)

func TestTimesNeverGoBackHoweverTheClockJumpsNorOverRestarts(t *testing.T) {
	s := newStand(t)
	var wall atomic.Int64
	wall.Store(1_800_000_000)
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	s.run()
	for i, jump := range []int64{0, 10, -3600, 1, 100_000, -100_000, 5} {
		wall.Add(jump)
		s.awaitStored(s.put("a", fmt.Sprint(i)))
		if i%2 == 0 {
			s.end()
			s.run()
			s.eventually(func(f Facts) bool { return f.Role == Writing }, "it writes again")
		}
	}
	require.NoError(t, s.Flush(t.Context()))
	a := archive.New(s.store, keys)
	objects, err := a.Objects(t.Context(), 1, archive.Segment, s.chains()[0].Objects[0].Start)
	require.NoError(t, err)
	var last time.Time
	for _, object := range objects {
		manifest, err := a.Manifest(t.Context(), 1, object.Start)
		require.NoError(t, err)
		assert.False(t, manifest.From.Before(last), "%s after %s", manifest.From, last)
		assert.False(t, manifest.To.Before(manifest.From))
		last = manifest.To
	}
	assert.EqualValues(t, 1_800_000_000+10-3600+1+100_000, last.Unix())
}

func TestATimeFindsTheRevisionOfThatTime(t *testing.T) {
	s := begun(t)
	first := s.put("a", "1")
	s.awaitStored(first)
	between := time.Now()
	if since := s.chains()[0].Fulls[0].Since(); between.Before(since) {
		between = since // no time before that is kept
	}
	for !time.Now().After(between.Add(3 * s.pace.tick)) {
		s.eventually(func(Facts) bool { return true }, "")
	}
	second := s.put("a", "2")
	s.awaitStored(second)
	require.NoError(t, s.Flush(t.Context()))
	path, err := archive.New(s.store, keys).Find(t.Context(), archive.Target{Time: between.Add(s.pace.tick)})
	require.NoError(t, err)
	assert.Equal(t, first, path.Revision)
}
