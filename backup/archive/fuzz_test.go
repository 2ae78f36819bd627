package archive_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
)

// statementsOf are the objects of an archive that are nothing but a statement.
var statementsOf = []string{
	"cluster.json", "gen/000001/generation.json", "reservation/0000000000000000100",
	"gen/000001/full/0000000000000000010-20261122T120010Z/manifest.json",
	"gen/000001/verified/0000000000000000010-20261122T120010Z_20261122T120100Z.json",
}

// FuzzManifests puts any statement with a right checksum in the place of each one, as somebody can who may write to the store.
func FuzzManifests(f *testing.F) {
	w := begin(f, &format.Keys{})
	w.segment(14)
	require.NoError(f, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Generation: 1, Revision: 100, Created: Noon}))
	full := *w.head().Full
	require.NoError(f, w.PutResult(w.ctx, archive.Result{Generation: 1, Full: full.Name(), Outcome: archive.Verified, At: At(60)}))
	for _, name := range append(w.names("gen/000001/segment/"), statementsOf...) {
		content, there := w.store.Content(name)
		require.True(f, there, name)
		begin, _, _ := bytes.Cut(content, []byte(`,"sha256":"`+checksumOf(content)))
		f.Add(begin)
	}
	f.Fuzz(func(t *testing.T, begin []byte) {
		w := *w
		w.t = t
		for _, name := range statementsOf {
			right, _ := w.store.Content(name)
			w.store.SetContent(name, checked(begin))
			result, err := w.try(archive.Target{})
			if err == nil {
				assert.Equal(t, revisions(result.full+1, result.Revision), result.revisions)
			}
			_, _ = w.Head(w.ctx, 1)
			_, _ = w.Reserved(w.ctx)
			w.store.SetContent(name, right)
		}
		w.store.SetContent(archive.SegmentName(1, format.After(14)), checked(begin))
		_, _ = w.try(archive.Target{})
		_, _ = w.try(archive.Target{Time: At(15)})
		_, _ = w.Head(w.ctx, 1)
		require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, format.After(14))))
	})
}

// checked ends a line with its checksum.
func checked(begin []byte) []byte {
	return fmt.Appendf(bytes.Clone(begin), ",\"sha256\":\"%x\"}\n", sha256.Sum256(begin))
}

// checksumOf is the checksum that a line ends with.
func checksumOf(line []byte) string {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return string(line[len(line)-66 : len(line)-2])
}
