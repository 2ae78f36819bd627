package recovery

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/recovery/peers"
)

// once is a member of three whose volume is of the time when it was alone, and whose others do not answer.
func once(t *testing.T) (*world, *others) {
	t.Helper()
	w, o := ofThree(t)
	require.Equal(t, 1, stand(t, w.member.DataDir).Voters)
	o.listing = peers.Unknown
	return w, o
}

// goesOn has the store get revisions that the volume does not have.
func (w *world) goesOn() {
	w.t.Helper()
	w.older = filepath.Join(w.t.TempDir(), "older")
	require.NoError(w.t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.put("a")
	w.backUp(1)
	w.rollBack()
}

// patient starts, and gives up when that has waited three times.
func (w *world) patient() (Start, error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	pauses := 0
	w.options.Pause = func(context.Context, int) {
		if pauses++; pauses == 3 {
			cancel()
		}
	}
	return w.startWithin(ctx, nil)
}

// waits holds that a run waits, with all as it was, and returns what it has said.
func (w *world) waits(o *others) string {
	w.t.Helper()
	_, err := w.patient()
	require.ErrorIs(w.t, err, context.Canceled)
	assert.Empty(w.t, w.asides())
	assert.Empty(w.t, o.changes)
	return w.log.String()
}

// opens holds that a volume is opened as it is, sooner or later.
func (w *world) opens() {
	w.t.Helper()
	start, err := w.patient()
	require.NoError(w.t, err, w.log.String())
	assert.Empty(w.t, start)
	assert.Empty(w.t, w.asides())
}

func (w *world) emptyStore() {
	w.store = memory.New()
	w.archive = archive.New(w.store, w.archive.Keys())
	w.options.Archive = w.archive
}

// backUpAs makes a full of what is on the volume, in a member's name.
func (w *world) backUpAs(member string) {
	w.t.Helper()
	stands := stand(w.t, w.member.DataDir)
	w.found(at)
	database, err := os.Open(w.database())
	require.NoError(w.t, err)
	defer database.Close()
	_, err = archivetest.PutFull(w.t.Context(), w.archive, archive.Full{
		Cluster: ours, Generation: 1, Revision: stands.Revision, Chain: segment.Seed(ours, 1, stands.Revision), Time: at, Reason: "asked for", Member: member,
	}, database)
	require.NoError(w.t, err)
}

// cameFurther has the store know that the cluster had come to a revision that the volume does not have.
func (w *world) cameFurther() {
	w.t.Helper()
	require.NoError(w.t, w.archive.Reserve(w.t.Context(), archive.Reservation{Cluster: ours, Generation: 1, Revision: margin + 3, Created: at}))
}
