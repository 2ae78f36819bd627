package sidecarstore_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store/memory"
)

// revisionsOf returns the revision of each row.
func revisionsOf(rows []format.Row) (revisions []int64) {
	for _, row := range rows {
		revisions = append(revisions, int64(binary.BigEndian.Uint64(row.Key)))
	}
	return revisions
}

func upTo(first, last int64) (revisions []int64) {
	for revision := first; revision <= last; revision++ {
		revisions = append(revisions, revision)
	}
	return revisions
}

func TestRows_followTheRevisionOfTheDatabase(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001", "v2/Incr-00000016-00000020-1002")
	for _, base := range []int64{10, 12, 15, 18, 20} {
		rows, err := collectRows(t, kept, base, archive.Target{})
		require.NoError(t, err)
		assert.Equal(t, upTo(base+1, 20), revisionsOf(rows), "base at revision %d", base)
	}
	rows, err := collect(t, kept, sidecarstore.Object{Name: "older than its name", Last: 17}, sidecarstore.Base{Revision: 13}, archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, upTo(14, 20), revisionsOf(rows))
	rows, err = collectRows(t, kept, 25, archive.Target{})
	require.NoError(t, err, "the base may be newer than all deltas")
	assert.Empty(t, rows)
}

func TestRows_endAtTheTarget(t *testing.T) {
	s := memory.New()
	kept := keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001", "v2/Incr-00000016-00000020-1002")
	for revision := int64(10); revision <= 20; revision++ {
		rows, err := collectRows(t, kept, 10, archive.Target{Revision: revision})
		require.NoError(t, err)
		assert.Equal(t, upTo(11, revision), revisionsOf(rows))
		rows, err = collectRows(t, kept, 10, archive.Target{Time: noon.Add(time.Duration(revision)*time.Second + time.Millisecond)})
		require.NoError(t, err)
		assert.Equal(t, upTo(11, revision), revisionsOf(rows))
	}
	_, err := collectRows(t, kept, 10, archive.Target{Revision: 21})
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.EqualError(t, err, "revision 21 is not available: the backups end at revision 20, in v2/Incr-00000016-00000020-1002")
	_, err = collectRows(t, kept, 13, archive.Target{Revision: 12})
	require.ErrorIs(t, err, sidecarstore.ErrNewer)
}

func TestRows_neverSplitTransactions(t *testing.T) {
	s := memory.New()
	s.SetContent("v2/Full-00000000-00000010-1000", nil)
	late := put(11, "b", "")
	late.Time = late.Time.Add(time.Hour)
	s.SetContent("v2/Incr-00000011-00000012-1001", sidecarstoretest.Delta(t, put(11, "a", ""), late, put(12, "c", "")))
	rows, err := collectRows(t, list(t, s), 10, archive.Target{Time: noon.Add(11 * time.Second)})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, keysOf(t, rows))
	rows, err = collectRows(t, list(t, s), 10, archive.Target{Time: noon.Add(11*time.Second - 1)})
	require.NoError(t, err)
	assert.Empty(t, rows)
}

func TestRows_nameMissingRevisions(t *testing.T) {
	full, next := "v2/Full-00000000-00000010-1000", "v2/Full-00000000-00000030-1003"
	for _, c := range []struct {
		name string
		kept []string
		to   archive.Target
		from int64 // first missing revision
		want string
	}{
		{
			"after the full snapshot",
			[]string{full, "v2/Incr-00000012-00000015-1001"},
			archive.Target{},
			11,
			"revisions 11 to 11 are missing between " + full + " and v2/Incr-00000012-00000015-1001",
		},
		{
			"between deltas",
			[]string{full, "v2/Incr-00000011-00000015-1001", "v2/Incr-00000020-00000022-1001"},
			archive.Target{Revision: 21},
			16,
			"revisions 16 to 19 are missing between v2/Incr-00000011-00000015-1001 and v2/Incr-00000020-00000022-1001",
		},
		{
			"before the next full snapshot",
			[]string{full, "v2/Incr-00000011-00000015-1001", next, "v2/Full-00000000-00000040-1004"},
			archive.Target{Revision: 20},
			16,
			"revisions 16 to 30 are missing between v2/Incr-00000011-00000015-1001 and " + next,
		},
		{
			"before the next full snapshot, with a later target",
			[]string{full, next, "v2/Incr-00000031-00000035-1004"},
			archive.Target{},
			11,
			"revisions 11 to 30 are missing between " + full + " and v2/Incr-00000031-00000035-1004",
		},
		{
			"before the next full snapshot, with a target time",
			[]string{full, "v2/Incr-00000011-00000015-1001", next},
			archive.Target{Time: noon.Add(time.Minute)},
			16,
			"revisions 16 to 30 are missing between v2/Incr-00000011-00000015-1001 and " + next,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			kept := keep(t, memory.New(), c.kept...)
			_, err := collect(t, kept, kept.Chains[0].Full, sidecarstore.Base{Revision: 10}, c.to)
			require.ErrorIs(t, err, archive.ErrNotKept)
			require.EqualError(t, err, "not available: "+c.want)
			rows, err := collect(t, kept, kept.Chains[0].Full, sidecarstore.Base{Revision: 10}, archive.Target{Revision: c.from - 1})
			require.NoError(t, err, "revisions before the gap must be available")
			assert.Equal(t, upTo(11, c.from-1), revisionsOf(rows))
		})
	}
}

func TestRows_continueAcrossALaterFullSnapshot(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001", "v2/Full-00000000-00000015-1002",
		"v2/Incr-00000016-00000018-1003")
	rows, err := collect(t, kept, kept.Chains[0].Full, sidecarstore.Base{Revision: 10}, archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, upTo(11, 18), revisionsOf(rows))
}

func TestRows_conflictWithFullSnapshot(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001")
	rows, err := collectRows(t, kept, 10, archive.Target{})
	require.NoError(t, err)
	held := map[string]format.Row{}
	for _, row := range rows[1:3] { // revision 11 is missing because it was compacted
		held[string(row.Key)] = row
	}
	base := sidecarstore.Base{Revision: 13, Row: func(revision []byte) (key, value []byte) {
		row := held[string(revision)]
		return row.Key, row.Value
	}}
	after, err := collect(t, kept, kept.Chains[0].Full, base, archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, rows[3:], after)

	expired := held[string(rows[1].Key)]
	expired.Key = append(expired.Key, 't') // as if a lease had expired while the sidecar compacted its backups
	held[string(rows[1].Key)] = expired
	_, err = collect(t, kept, kept.Chains[0].Full, base, archive.Target{})
	require.ErrorIs(t, err, sidecarstore.ErrConflict)
	assert.EqualError(t, err, "backups conflict: revision 12 differs between v2/Full-00000000-00000010-1000 and v2/Incr-00000011-00000015-1001")
}

func TestRows_mayStopEarly(t *testing.T) {
	kept := keep(t, memory.New(), "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001")
	for row, err := range kept.Rows(t.Context(), kept.Chains[0].Full, sidecarstore.Base{Revision: 10}, archive.Target{}) {
		require.NoError(t, err)
		assert.Equal(t, []int64{11}, revisionsOf([]format.Row{row}))
		break
	}
}

// FuzzDelta searches for content that makes the reader panic, or for which the reader returns rows that etcd cannot
// have written.
func FuzzDelta(f *testing.F) {
	for i, suffix := range sidecarstoretest.Suffixes {
		plain := sidecarstoretest.Delta(f, append(puts(11, 13), put(13, "more", "value"))...)
		f.Add(sidecarstoretest.Compress(f, suffix, plain), uint8(i))
		f.Add(plain[:len(plain)-32], uint8(4+i))
	}
	f.Add([]byte(`[{"etcdEvent":{"type":1,"kv":{"key":"Zm9v","mod_revision":11}},"time":"2020-11-23T13:43:07Z"}]`), uint8(4))
	f.Fuzz(func(t *testing.T, content []byte, how uint8) {
		suffix := sidecarstoretest.Suffixes[how%4]
		if how%8 >= 4 { // add a digest and compress the content, as the sidecar does
			content = sidecarstoretest.Compress(t, suffix, sidecarstoretest.WithDigest(content))
		}
		rows, err := readDelta(t, suffix, content)
		if err != nil {
			require.True(t, errors.Is(err, restore.ErrDamaged) || errors.Is(err, archive.ErrNotKept), err)
			return
		}
		for i, row := range rows {
			require.Equal(t, len(row.Key) == 18, len(row.Key) != 17 && row.Key[17] == 't')
			require.True(t, i == 0 || bytes.Compare(rows[i-1].Key, row.Key) < 0, "rows must be in order")
			var kv mvccpb.KeyValue
			require.NoError(t, kv.Unmarshal(row.Value))
			require.NotEmpty(t, kv.Key)
			require.True(t, len(row.Key) == 18 || kv.ModRevision == revisionsOf(rows[i : i+1])[0])
		}
	})
}

func TestRows_equalEtcdsAfterRandomHistories(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, seed)
			w.write(40)
			_, err := w.client.Compact(t.Context(), w.revision()-5)
			require.NoError(t, err)
			first := w.full(10) // the snapshot contains ten more requests than its name says
			store := w.watch(first)
			w.write(60)
			store(4)
			w.write(40)
			w.watch(first + 3)(3) // another sidecar stores some of the same revisions
			last := w.revision()
			w.stop()
			want := rows(t, filepath.Join(w.dir, "member", "snap", "db"))

			kept := list(t, w.store)
			require.Len(t, kept.Chains, 1)
			full := kept.Chains[0].Full
			base := w.base(kept, full)
			require.Greater(t, base.Revision, full.Last, "the snapshot must be newer than its name")
			got, err := collect(t, kept, full, base, archive.Target{})
			require.NoError(t, err)
			require.NotEmpty(t, got)
			assert.Equal(t, between(want, base.Revision, last), got)
			for range 5 {
				revision := base.Revision + w.random.Int64N(last-base.Revision+1)
				got, err := collect(t, kept, full, base, archive.Target{Revision: revision})
				require.NoError(t, err)
				assert.Equal(t, between(want, base.Revision, revision), got)
			}
		})
	}
}

// between returns the rows with revisions in (after, last].
func between(rows []format.Row, after, last int64) (wanted []format.Row) {
	for i, revision := range revisionsOf(rows) {
		if revision > after && revision <= last {
			wanted = append(wanted, rows[i])
		}
	}
	return wanted
}
