package sidecarstore_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/restore/sidecarstore"
)

func TestRowsOfRandomHistoriesAreEtcdsOwnByteByByte(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed)
			w.write(40)
			_, err := w.client.Compact(t.Context(), w.revision()-5)
			require.NoError(t, err)
			first := w.full(10) // its content is ten requests newer than its name
			keep := w.watch(first)
			w.write(60)
			keep(4)
			w.write(40)
			w.watch(first + 3)(3) // by another sidecar, which writes again what the first one wrote
			last := w.revision()
			w.stop()
			want := rows(t, filepath.Join(w.dir, "member", "snap", "db"))

			archive := list(t, w.store)
			require.Len(t, archive.Chains, 1)
			full := archive.Chains[0].Full
			base := w.base(archive, full)
			require.Greater(t, base.Revision, full.Last, "the full's name is to lie")
			got, err := collect(t, archive, full, base, sidecarstore.Target{})
			require.NoError(t, err)
			require.NotEmpty(t, got)
			assert.Equal(t, between(want, base.Revision, last), withoutTime(got))
			for range 5 {
				revision := base.Revision + w.random.Int64N(last-base.Revision+1)
				got, err := collect(t, archive, full, base, sidecarstore.Target{Revision: revision})
				require.NoError(t, err)
				assert.Equal(t, between(want, base.Revision, revision), withoutTime(got))
			}
		})
	}
}

// between are the rows of the revisions after one and up to another.
func between(rows []sidecarstore.Row, after, last int64) (wanted []sidecarstore.Row) {
	for i, revision := range revisionsOf(rows) {
		if revision > after && revision <= last {
			wanted = append(wanted, rows[i])
		}
	}
	return wanted
}
