package sidecarstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store/memory"
)

func TestWhatTwoSidecarsWroteIsReadOnce(t *testing.T) {
	for _, kept := range [][]string{
		{"v2/Incr-00000011-00000015-1001", "v2/Incr-00000011-00000018-1002", "v2/Incr-00000019-00000020-1003"}, // a leader after the other
		{"v2/Incr-00000011-00000015-1001", "v2/Incr-00000013-00000017-1001", "v2/Incr-00000016-00000020-1002", "v2/Incr-00000018-00000019-1002"},
		{"v2/Incr-00000011-00000020-1001", "v2/Incr-00000012-00000013-1001", "v2/Incr-00000014-00000020-1001"},
	} {
		archive := keep(t, memory.New(), append(kept, "v2/Full-00000000-00000010-1000")...)
		for last := int64(11); last <= 20; last++ {
			rows, err := replay(t, archive, 10, sidecarstore.Target{Revision: last})
			require.NoError(t, err)
			assert.Equal(t, upTo(11, last), revisionsOf(rows), "%v", kept)
		}
	}
}

func TestNamesOfOverlapsMayPromiseMoreThanThereIs(t *testing.T) {
	s := memory.New()
	keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001")
	s.SetContent("v2/Incr-00000012-00000020-1002", sidecarstoretest.Delta(t, puts(14, 20)...))
	rows, err := replay(t, list(t, s), 10, sidecarstore.Target{})
	require.NoError(t, err)
	assert.Equal(t, upTo(11, 20), revisionsOf(rows))
}

func TestOfTwoTimesOfARevisionTheFirstCounts(t *testing.T) {
	s := memory.New()
	keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000011-1001")
	late := put(11, "key-11", "value")
	late.Time = late.Time.Add(time.Minute)
	s.SetContent("v2/Incr-00000011-00000011-1000", sidecarstoretest.Delta(t, late))
	rows, err := replay(t, list(t, s), 10, sidecarstore.Target{Time: noon.Add(11 * time.Second)})
	require.NoError(t, err)
	assert.Len(t, rows, 1)
}

func TestOverlapsThatDifferAreRefused(t *testing.T) {
	for name, events := range map[string][]sidecarstoretest.Event{
		"another value":          {put(12, "key-12", "other"), put(13, "key-13", "value"), put(14, "key-14", "value")},
		"one change more":        {put(12, "key-12", "value"), put(12, "more", ""), put(13, "key-13", "value"), put(14, "key-14", "value")},
		"a deletion":             {{EtcdEvent: &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte("key-12"), ModRevision: 12}}}},
		"one change more at end": append(puts(12, 15), put(15, "more", "")),
	} {
		t.Run(name, func(t *testing.T) {
			s := memory.New()
			keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001")
			s.SetContent("v2/Incr-00000012-00000015-1002", sidecarstoretest.Delta(t, events...))
			_, err := replay(t, list(t, s), 10, sidecarstore.Target{})
			require.ErrorIs(t, err, sidecarstore.ErrConflict)
			assert.ErrorContains(t, err, "v2/Incr-00000011-00000015-1001")
			assert.ErrorContains(t, err, "v2/Incr-00000012-00000015-1002")
		})
	}
}

func TestADifferenceIsFoundBeneathOtherDeltas(t *testing.T) {
	s := memory.New()
	keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000012-1001", "v2/Incr-00000014-00000015-1001")
	s.SetContent("v2/Incr-00000011-00000020-1002", sidecarstoretest.Delta(t, append([]sidecarstoretest.Event{put(11, "key-11", "other")}, puts(12, 20)...)...))
	_, err := replay(t, list(t, s), 10, sidecarstore.Target{})
	require.ErrorIs(t, err, sidecarstore.ErrConflict)
}

func TestDeletionsOfOneTransactionAreNotThoseOfTwo(t *testing.T) {
	deletion := func(revision int64, key string) sidecarstoretest.Event {
		return sidecarstoretest.Event{EtcdEvent: &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}}
	}
	s := memory.New()
	s.SetContent("v2/Full-00000000-00000010-1000", nil)
	s.SetContent("v2/Incr-00000011-00000012-1001", sidecarstoretest.Delta(t, deletion(11, "a"), deletion(11, "b")))
	s.SetContent("v2/Incr-00000011-00000012-1002", sidecarstoretest.Delta(t, deletion(11, "a"), deletion(12, "b")))
	_, err := replay(t, list(t, s), 10, sidecarstore.Target{})
	require.ErrorIs(t, err, sidecarstore.ErrConflict)
}

func TestTooManyOverlapsAreRefused(t *testing.T) {
	s, kept := memory.New(), []string{"v2/Full-00000000-00000010-1000"}
	for i := range 9 {
		kept = append(kept, fmt.Sprintf("v2/Incr-00000011-00000015-%d", 2000+i))
	}
	_, err := replay(t, keep(t, s, kept...), 10, sidecarstore.Target{})
	require.ErrorIs(t, err, sidecarstore.ErrConflict)
	require.NoError(t, s.Delete(t.Context(), kept[9]))
	_, err = replay(t, list(t, s), 10, sidecarstore.Target{})
	require.NoError(t, err)
}
