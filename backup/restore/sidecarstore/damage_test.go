package sidecarstore_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// readDelta reads an archive with a full snapshot and the given delta.
func readDelta(t testing.TB, suffix string, content []byte) ([]format.Row, error) {
	s := memory.New()
	s.SetContent("v2/Full-00000000-00000010-1000", nil)
	s.SetContent("v2/Incr-00000011-00000013-1001"+suffix, content)
	return collectRows(t, list(t, s), 10, archive.Target{})
}

func TestDelta_read(t *testing.T) {
	rows, err := readDelta(t, "", sidecarstoretest.WithDigest([]byte(`[`+
		`{"etcdEvent":{"kv":{"key":"Zm9v","create_revision":2,"mod_revision":11,"version":9,"value":"YmFy","lease":7587}},`+
		`"time":"2020-11-23T14:43:06.123456789+01:00"},`+
		`{"etcdEvent":{"type":1,"kv":{"key":"Zm9v","mod_revision":12}},"time":"2020-11-23T13:43:07Z"},`+
		`{"etcdEvent":{"kv":{"key":"YQ==","create_revision":12,"mod_revision":12,"version":1}},"time":"2020-11-23T13:43:07Z"}]`)))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	assert.Equal(t, "\x00\x00\x00\x00\x00\x00\x00\x0b_\x00\x00\x00\x00\x00\x00\x00\x00", string(rows[0].Key))
	assert.Equal(t, "\x0a\x03foo\x10\x02\x18\x0b\x20\x09\x2a\x03bar\x30\xa3\x3b", string(rows[0].Value))
	assert.Equal(t, "\x00\x00\x00\x00\x00\x00\x00\x0c_\x00\x00\x00\x00\x00\x00\x00\x00t", string(rows[1].Key))
	assert.Equal(t, "\x0a\x03foo", string(rows[1].Value))
	assert.Equal(t, "\x00\x00\x00\x00\x00\x00\x00\x0c_\x00\x00\x00\x00\x00\x00\x00\x01", string(rows[2].Key))
}

func TestDelta_detectsEveryChangedByte(t *testing.T) {
	for _, suffix := range sidecarstoretest.Suffixes {
		t.Run("suffix "+suffix, func(t *testing.T) {
			plain := sidecarstoretest.Delta(t, puts(11, 13)...)
			whole := sidecarstoretest.Compress(t, suffix, plain)
			rows, err := readDelta(t, suffix, whole)
			require.NoError(t, err)
			require.Len(t, rows, 3)
			step := min(1+6*len(suffix), 7) // every byte of uncompressed content, and every seventh byte of compressed content
			for at := 0; at < len(whole); at += step {
				_, err := readDelta(t, suffix, whole[:at])
				requireDamage(t, err, "cut off after %d bytes", at)
				altered := slices.Clone(whole)
				altered[at] ^= 0x20
				if rows, err := readDelta(t, suffix, altered); err == nil {
					require.Len(t, rows, 3, "byte %d", at) // the byte is in the gzip header, not in the content
				} else {
					requireDamage(t, err, "altered byte %d", at)
				}
			}
			// Truncated content must be detected even if it is compressed correctly, because a bug in the sidecar can
			// cause this.
			for at := 0; at < len(plain); at += step {
				_, err := readDelta(t, suffix, sidecarstoretest.Compress(t, suffix, plain[:at]))
				requireDamage(t, err, "cut off after %d bytes and then compressed", at)
			}
		})
	}
}

func requireDamage(t *testing.T, err error, msg string, args ...any) {
	t.Helper()
	require.ErrorIs(t, err, restore.ErrDamaged, append([]any{msg}, args...)...)
	require.ErrorContains(t, err, "v2/Incr-00000011-00000013-1001")
	require.NotContains(t, err.Error(), "\n")
}

func TestSnapshot_requiresDigest(t *testing.T) {
	database := bytes.Repeat([]byte("page of a database"), 10_000)
	for _, suffix := range sidecarstoretest.Suffixes {
		t.Run("suffix "+suffix, func(t *testing.T) {
			s, name := memory.New(), "v2/Full-00000000-00000010-1000"+suffix+".final"
			whole := sidecarstoretest.Compress(t, suffix, sidecarstoretest.WithDigest(database))
			s.SetContent(name, whole)
			read, err := snapshot(t, list(t, s))
			require.NoError(t, err)
			assert.Equal(t, database, read)
			altered := slices.Clone(whole)
			altered[len(altered)/2] ^= 1
			for what, content := range map[string][]byte{
				"empty": nil, "cut off": whole[:len(whole)-1], "only a digest": sidecarstoretest.Compress(t, suffix, make([]byte, 32)), "altered": altered,
				"digest cut off": sidecarstoretest.Compress(t, suffix, sidecarstoretest.WithDigest(database)[:len(database)]),
			} {
				s.SetContent(name, content)
				_, err := snapshot(t, list(t, s))
				if !errors.Is(err, restore.ErrDigest) {
					require.ErrorIs(t, err, restore.ErrDamaged, what)
					require.ErrorContains(t, err, name)
				}
			}
		})
	}
}

func TestDelta_errorMessages(t *testing.T) {
	secret := put(11, "key", "secret")
	secret.EtcdEvent.Kv.Version = 0
	createdLater := put(11, "key", "secret")
	createdLater.EtcdEvent.Kv.CreateRevision = 12
	for name, c := range map[string]struct {
		suffix  string
		content []byte
		want    string
	}{
		"cut off":              {".gz", sidecarstoretest.Compress(t, ".gz", sidecarstoretest.Delta(t, puts(11, 13)...))[:40], ".gz: the object is truncated"},
		"not gzip":             {".gz", []byte("no backup, but long enough to be one"), ".gz: gzip: invalid header"},
		"unknown suffix":       {".zst", nil, ".zst: unknown compression suffix"},
		"not an array":         {"", sidecarstoretest.WithDigest([]byte(`{"etcdEvent":null}`)), ": invalid event array at byte 1"},
		"altered content":      {"", append(sidecarstoretest.Delta(t, put(11, "a", "")), 'x'), ": SHA-256 mismatch: the snapshot is truncated or was modified"},
		"data after the array": {"", sidecarstoretest.WithDigest([]byte("[] []")), ": invalid event array at byte 4"},
		"unknown field":        {"", sidecarstoretest.WithDigest([]byte(`[{"secret":1}]`)), "invalid event array at byte "},
		"invalid time":         {"", sidecarstoretest.WithDigest([]byte(`[{"time":"secret"}]`)), "invalid event array at byte "},
		"unknown type":         {"", sidecarstoretest.WithDigest([]byte(`[{"etcdEvent":{"type":7,"kv":{"key":"YQ==","mod_revision":11}}}]`)), ": event at revision 11 has unknown type 7"},
		"no key":               {"", sidecarstoretest.WithDigest([]byte(`[{"etcdEvent":{"kv":{"mod_revision":11}}}]`)), ": event has no key"},
		"no event":             {"", sidecarstoretest.WithDigest([]byte(`[null]`)), ": event has no key"},
		"put with version 0":   {"", sidecarstoretest.Delta(t, secret), ": put at revision 11 has an invalid version (0) or create revision (11)"},
		"created too late":     {"", sidecarstoretest.Delta(t, createdLater), ": put at revision 11 has an invalid version (1) or create revision (12)"},
		"decreasing revision":  {"", sidecarstoretest.Delta(t, put(11, "a", ""), put(12, "b", ""), put(11, "c", "")), ": found revision 11, expected 12 or later"},
		"less than its name":   {"", sidecarstoretest.Delta(t, put(10, "a", "")), ": found revision 10, expected 11 or later"},
		"only a digest":        {"", sidecarstoretest.WithDigest(nil), ": invalid event array at byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readDelta(t, c.suffix, c.content)
			require.ErrorIs(t, err, restore.ErrDamaged)
			assert.ErrorContains(t, err, "v2/Incr-00000011-00000013-1001")
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "secret", "an error must not repeat the content of a backup")
		})
	}
}

func TestDelta_detectsDamageAfterTarget(t *testing.T) {
	s := memory.New()
	s.SetContent("v2/Full-00000000-00000010-1000", nil)
	content := sidecarstoretest.Delta(t, puts(11, 13)...)
	content[len(content)-40] ^= 1
	s.SetContent("v2/Incr-00000011-00000013-1001", content)
	rows, err := collectRows(t, list(t, s), 10, archive.Target{Revision: 11})
	require.ErrorIs(t, err, restore.ErrDamaged)
	assert.Len(t, rows, 1)
}

func TestStoreError_isNotDamage(t *testing.T) {
	for what, faults := range map[string][]memory.Fault{
		"first read fails":   {{Op: memory.Get, Err: memory.ErrServerError}},
		"second read fails":  {{Op: memory.Get, Cut: 10, Times: 1}, {Op: memory.Get, Err: store.ErrUnavailable}},
		"second read denied": {{Op: memory.Get, Cut: 10, Times: 1}, {Op: memory.Get, Err: store.ErrDenied}},
	} {
		synctest.Test(t, func(t *testing.T) { // reads are retried for minutes
			s := memory.New()
			kept := keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000013-1001")
			for _, read := range []func() error{
				func() error { _, err := collectRows(t, kept, 10, archive.Target{}); return err },
				func() error { _, err := snapshot(t, kept); return err },
			} {
				s.ClearFaults()
				s.Inject(faults...)
				err := read()
				require.ErrorIs(t, err, faults[len(faults)-1].Err, what)
				require.NotErrorIs(t, err, restore.ErrDamaged, what)
				require.ErrorContains(t, err, "cannot read v2/", what)
			}
		})
	}
}

func TestDelta_mayBeLargerThanOneEvent(t *testing.T) {
	large := strings.Repeat("v", 9<<20)
	rows, err := readDelta(t, "", sidecarstoretest.Delta(t, put(11, "a", large), put(12, "b", large)))
	require.NoError(t, err)
	assert.Len(t, rows, 2)
}

func TestDelta_limitsMemory(t *testing.T) {
	for _, c := range []struct{ name, before, fill string }{
		{"between events", "[", " "},
		{"within an event", `[{"etcdEvent":`, " "},
		{"in a value", `[{"etcdEvent":{"kv":{"value":"`, "A"},
		{"outside an array", "", "["},
	} {
		t.Run(c.name, func(t *testing.T) {
			const size, most = 48 << 20, 96 << 20
			bomb := decompressionBomb(t, c.before, c.fill, size)
			require.Less(t, len(bomb), 1<<20)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readDelta(t, ".gz", bomb)
			runtime.ReadMemStats(&after)
			requireDamage(t, err, c.name)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most))
		})
	}
}

// decompressionBomb returns a small object that decompresses to large content.
func decompressionBomb(t *testing.T, before, fill string, size int) []byte {
	var compressed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.WriteString(writer, before)
	require.NoError(t, err)
	for block := bytes.Repeat([]byte(fill), 1<<20); size > 0; size -= len(block) {
		_, err := writer.Write(block)
		require.NoError(t, err)
	}
	require.NoError(t, writer.Close())
	return compressed.Bytes()
}

func TestOverlap_isReadOnce(t *testing.T) {
	for _, kept := range [][]string{
		{"v2/Incr-00000011-00000015-1001", "v2/Incr-00000011-00000018-1002", "v2/Incr-00000019-00000020-1003"}, // delta snapshots of consecutive leaders
		{"v2/Incr-00000011-00000015-1001", "v2/Incr-00000013-00000017-1001", "v2/Incr-00000016-00000020-1002", "v2/Incr-00000018-00000019-1002"},
		{"v2/Incr-00000011-00000020-1001", "v2/Incr-00000012-00000013-1001", "v2/Incr-00000014-00000020-1001"},
	} {
		kept := keep(t, memory.New(), append(kept, "v2/Full-00000000-00000010-1000")...)
		for last := int64(11); last <= 20; last++ {
			rows, err := collectRows(t, kept, 10, archive.Target{Revision: last})
			require.NoError(t, err)
			assert.Equal(t, upTo(11, last), revisionsOf(rows), "%v", kept)
		}
	}
}

func TestOverlap_namesMayExceedTheContent(t *testing.T) {
	s := memory.New()
	keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000015-1001")
	s.SetContent("v2/Incr-00000012-00000020-1002", sidecarstoretest.Delta(t, puts(14, 20)...))
	rows, err := collectRows(t, list(t, s), 10, archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, upTo(11, 20), revisionsOf(rows))
}

func TestOverlap_theEarlierTimeCounts(t *testing.T) {
	s := memory.New()
	keep(t, s, "v2/Full-00000000-00000010-1000", "v2/Incr-00000011-00000011-1001")
	late := put(11, "key-11", "value")
	late.Time = late.Time.Add(time.Minute)
	s.SetContent("v2/Incr-00000011-00000011-1000", sidecarstoretest.Delta(t, late))
	rows, err := collectRows(t, list(t, s), 10, archive.Target{Time: noon.Add(11 * time.Second)})
	require.NoError(t, err)
	assert.Len(t, rows, 1)
}

func TestOverlap_differencesAreRejected(t *testing.T) {
	type deltas map[string][]sidecarstoretest.Event
	deletion := func(revision int64, key string) sidecarstoretest.Event {
		return sidecarstoretest.Event{EtcdEvent: &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}}
	}
	const first, second = "v2/Incr-00000011-00000015-1001", "v2/Incr-00000012-00000015-1002"
	for name, laid := range map[string]deltas{
		"different value":        {first: puts(11, 15), second: {put(12, "key-12", "other"), put(13, "key-13", "value"), put(14, "key-14", "value")}},
		"additional change":      {first: puts(11, 15), second: {put(12, "key-12", "value"), put(12, "more", ""), put(13, "key-13", "value"), put(14, "key-14", "value")}},
		"a deletion":             {first: puts(11, 15), second: {deletion(12, "key-12")}},
		"additional last change": {first: puts(11, 15), second: append(puts(12, 15), put(15, "more", ""))},
		"overlap with two deltas": {
			"v2/Incr-00000011-00000012-1001": puts(11, 12), "v2/Incr-00000014-00000015-1001": puts(14, 15),
			"v2/Incr-00000011-00000020-1002": append([]sidecarstoretest.Event{put(11, "key-11", "other")}, puts(12, 20)...),
		},
		"different transaction boundaries": {
			"v2/Incr-00000011-00000012-1001": {deletion(11, "a"), deletion(11, "b")},
			"v2/Incr-00000011-00000012-1002": {deletion(11, "a"), deletion(12, "b")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := memory.New()
			s.SetContent("v2/Full-00000000-00000010-1000", nil)
			for object, events := range laid {
				s.SetContent(object, sidecarstoretest.Delta(t, events...))
			}
			_, err := collectRows(t, list(t, s), 10, archive.Target{})
			require.ErrorIs(t, err, sidecarstore.ErrConflict)
			assert.Regexp(t, "between v2/Incr-00000011-[0-9]+-1001 and v2/Incr-[0-9]+-[0-9]+-1002$", err.Error())
		})
	}
}

func TestOverlap_isLimited(t *testing.T) {
	s, kept := memory.New(), []string{"v2/Full-00000000-00000010-1000"}
	for i := range 9 {
		kept = append(kept, fmt.Sprintf("v2/Incr-00000011-00000015-%d", 2000+i))
	}
	_, err := collectRows(t, keep(t, s, kept...), 10, archive.Target{})
	require.ErrorIs(t, err, sidecarstore.ErrConflict)
	require.NoError(t, s.Delete(t.Context(), kept[9]))
	_, err = collectRows(t, list(t, s), 10, archive.Target{})
	require.NoError(t, err)
}
