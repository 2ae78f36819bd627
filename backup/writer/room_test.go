package writer

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/memory"
)

func TestWithoutRoomForACopyTheDatabaseIsSealedOnItsWay(t *testing.T) {
	s := newStand(t)
	s.tune = append(s.tune, func(s *Writer) { s.room = onlyForSegments })
	for i := range most>>20 + 2 {
		s.put(fmt.Sprint("a", i), strings.Repeat("x", 1<<20))
	}
	s.run()
	s.awaitStored(s.put("a", "1"))
	done, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	assert.Less(t, done.Bytes, done.Database)
	s.requireChains(1)
	s.requireAllKept()
}

// onlyForSegments is a volume that has no room for the database.
func onlyForSegments(size int64) error {
	if size > most {
		return ErrSpoolFull
	}
	return nil
}

// The store takes its time, and meanwhile etcd and what waits fill the volume.
func TestACopyGivesWayWhenTheVolumeRunsShortWhileItIsStored(t *testing.T) {
	s := newStand(t)
	var short atomic.Bool
	s.tune = append(s.tune, func(s *Writer) {
		s.room = func(int64) error {
			if short.Load() {
				return ErrSpoolFull
			}
			return nil
		}
	})
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	asked := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := s.FullNow(ctx, "asked for")
		asked <- err
	}()
	s.eventually(func(f Facts) bool { return f.FullRunning != nil && f.FullRunning.Doing == "stores the copy" }, "it is copied")
	short.Store(true)
	require.ErrorIs(t, <-asked, ErrSpoolFull)
	s.eventually(func(f Facts) bool { return f.FullRunning == nil && f.Trouble != nil }, "it is given up")
	assert.Equal(t, "cannot keep a copy of the database until it is stored: "+ErrSpoolFull.Error(), s.Facts().Trouble.Text)
	copies, err := filepath.Glob(filepath.Join(s.options.SpoolDir, "making", "*"))
	require.NoError(t, err)
	assert.Empty(t, copies, "the volume has its room back")
	short.Store(false)
	s.store.Heal()
	_, err = s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	s.requireChains(1)
}

func TestACopyThatWaitsForSegmentsGivesWayAsWell(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/segment", Hang: true})
	s.put("a", "1")
	go func() { _, _ = s.FullNow(t.Context(), "asked for") }()
	waits := func(f Facts) bool {
		return f.FullRunning != nil && f.FullRunning.Doing == "waits until what is before it is stored"
	}
	s.eventually(waits, "the database is copied")
	require.NoError(t, s.tell(t.Context(), func() { s.room = func(int64) error { return ErrSpoolFull } }))
	s.eventually(func(f Facts) bool { return f.FullRunning == nil && f.Trouble != nil }, "it is given up")
	assert.Contains(t, s.Facts().Trouble.Text, "cannot keep a copy")
}

func TestAFullThatHasNoRoomEvenSealedIsTroubleInOneClause(t *testing.T) {
	s := newStand(t)
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random)
	for i := range 16 {
		s.put(fmt.Sprint("incompressible", i), string(random))
	}
	s.tune = append(s.tune, func(s *Writer) {
		s.pace.tick = time.Microsecond // it would be done before
		s.room = func(int64) error { return ErrSpoolFull }
	})
	s.run()
	s.eventually(func(f Facts) bool { return f.Trouble != nil }, "trouble")
	assert.Equal(t, "cannot copy the database: "+ErrSpoolFull.Error(), s.Facts().Trouble.Text)
}
