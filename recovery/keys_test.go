package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
)

// setKeys replaces the keys of the writer and of recovery.
func (w *world) setKeys(keys *format.Keys) {
	w.archive = archive.New(w.store, keys)
	w.options.Archive = w.archive
}

// successor returns keys that sign with another key and trust both.
func successor(t *testing.T, former, present formattest.Keys) *format.Keys {
	t.Helper()
	return formattest.LoadKeys(t, format.KeyFiles{
		Recipients: former.Recipients, Identities: former.Identities, SigningKey: present.SigningKey,
		TrustedKeys: formattest.JoinFiles(t, former.TrustedKeys, present.TrustedKeys),
	})
}

// Keys are replaced or lost. Backups signed with another key must not be skipped in favor of older ones.
func TestUntrustedBackupsAreNotSkipped(t *testing.T) {
	trusted, other := formattest.NewKeys(t), formattest.NewKeys(t)
	for what, test := range map[string]struct {
		written func(w *world) string // the name of an untrusted object
		spoilt  func(w *world)
	}{
		"a full, empty volume":  {func(w *world) string { w.backUp(); return "/manifest.json" }, (*world).lose},
		"a full, broken volume": {func(w *world) string { w.backUp(); return "/manifest.json" }, (*world).damage},
		"the last segment":      {func(w *world) string { return archive.SegmentName(1, w.uploadSegment().Position) }, (*world).damage},
		"a segment in the middle": {func(w *world) string {
			name := archive.SegmentName(1, w.uploadSegment().Position)
			w.put("d")
			own := w.archive
			w.archive = archive.New(w.store, trusted.Load(w.t))
			defer func() { w.archive = own }()
			head, err := own.Head(w.t.Context(), 1)
			require.NoError(w.t, err)
			last := segmentAfter(w, head.Start)
			require.NoError(w.t, archivetest.PutSegment(w.t.Context(), w.archive, last))
			return name
		}, (*world).damage},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.setKeys(trusted.Load(t))
			w.fill()
			w.put("a", "b", "c")
			w.setKeys(successor(t, trusted, other))
			name := test.written(w)
			w.setKeys(trusted.Load(t))
			test.spoilt(w)
			w.requireRefused("gen/000001/", name, "--backup-trusted-keys", "--restore-to", "nothing was moved")

			w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "we know"}
			require.NoError(t, w.run(), "who asks for a revision gets that")
			w.requireKeys("key")
		})
	}
}

// segmentAfter returns a segment with one row that continues from a start.
func segmentAfter(w *world, start format.Start) format.Object {
	builder, err := format.NewSegmentBuilder(w.archive.Keys(), start)
	require.NoError(w.t, err)
	key := []byte("\x00\x00\x00\x00\x00\x00\x00\x00_\x00\x00\x00\x00\x00\x00\x00\x00")
	key[7] = byte(start.Position.Revision)
	require.NoError(w.t, builder.Add(&format.Row{Key: key}))
	object, err := builder.Finish(format.Source{})
	require.NoError(w.t, err)
	return object
}

func TestNothingIsRestoredFromAnUntrustedStore(t *testing.T) {
	for what, trusted := range map[string]func(w *world){
		"the cluster manifest": func(*world) {},
		"all fulls": func(w *world) {
			founded := w.clusterManifest()
			require.NoError(t, w.store.Delete(t.Context(), "cluster.json"))
			require.NoError(t, w.store.Delete(t.Context(), archive.GenerationPrefix(1)+"generation.json"))
			_, err := w.options.Archive.Create(t.Context(), founded, 1)
			require.NoError(t, err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, pair := newWorld(t), formattest.NewKeys(t)
			w.fill()
			w.options.Archive = archive.New(w.store, pair.Load(t))
			trusted(w)
			w.lose()
			w.requireRefused("it has no signature", "--backup-trusted-keys")
		})
	}
}

// Without a signing key, the new generation would be unsigned, and members with keys would reject it.
func TestMissingKeyIsNamed(t *testing.T) {
	made := formattest.NewKeys(t)
	signed := format.KeyFiles{SigningKey: made.SigningKey, TrustedKeys: made.TrustedKeys}
	for name, test := range map[string]struct {
		written, given *format.Keys
		message        []string
	}{
		"what is signed":    {formattest.LoadKeys(t, signed), &format.Keys{}, []string{"signed", "--backup-signing-key", "set it"}},
		"what is encrypted": {made.Load(t), formattest.LoadKeys(t, signed), []string{"--backup-identities is not set", "nothing was moved"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.setKeys(test.written)
			w.fill()
			w.put("a")
			w.setKeys(test.given)
			w.requireStarts() // the volume has everything
			w.damage()
			w.requireRefused(test.message...)
		})
	}
}

func TestUntrustedBackupsStopOnlyMembersThatNeedThem(t *testing.T) {
	for what, test := range map[string]struct {
		action  func(w *world)
		message []string // empty if the member starts
	}{
		"it has everything": {func(w *world) { w.backUp() }, nil},
		"it lacks that": {func(w *world) {
			w.backUp()
			w.rollBack()
		}, []string{"end with revision 2, but object names in the store suggest revision 4", "/manifest.json", "--recover=never", "--backup-trusted-keys"}},
		"it is to go back to that": {func(w *world) {
			w.uploadSegment()
			w.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "a"}
		}, []string{"revision 3 is not kept", "gen/000001/segment/", "--backup-trusted-keys"}},
	} {
		t.Run(what, func(t *testing.T) {
			w, pair := newWorld(t), formattest.NewKeys(t)
			w.setKeys(pair.Load(t))
			w.fill()
			w.copyVolume()
			w.put("a", "b")
			w.setKeys(successor(t, pair, formattest.NewKeys(t)))
			test.action(w)
			w.setKeys(pair.Load(t))
			if test.message == nil {
				w.requireStarts()
			} else {
				w.requireRefused(test.message...)
			}
		})
	}
}
