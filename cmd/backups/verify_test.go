package backups

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

// restores returns a RestoreFunc that restores nothing and reports the given outcome for every path.
func restores(outcome archive.Outcome) func(context.Context, archive.Path) (archive.Result, error) {
	return func(_ context.Context, path archive.Path) (archive.Result, error) {
		return archive.Result{
			Cluster: path.Full.Cluster, Generation: path.Full.Generation, Full: path.Full.Name(), Revision: path.Revision,
			Segments: path.Revision != path.Full.Revision, Outcome: outcome, Why: map[archive.Outcome]string{archive.Failed: "it differs"}[outcome], At: time.Now(),
		}, nil
	}
}

// newest selects the newest full snapshot, without the segments that follow it.
var newest = Selector{Full: true}

func TestVerify_newestFull(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	verified, err := Verify(t.Context(), settings, newest, restores(archive.Verified))
	require.NoError(t, err)
	assert.Equal(t, l.revision, verified.Revision)
	assert.Regexp(t, "^restored revision 21 \\(full snapshot .* recorded the result in the store\n$", printed(t, verified)+"\n")
	history, err := settings.Archive().History(t.Context())
	require.NoError(t, err)
	assert.Equal(t, archive.Verified, history.Newest().Fulls[0].Result.Outcome)
}

func TestVerify_generation(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	require.NoError(t, archivetest.BeginGeneration(t.Context(), settings.Archive(), archive.Generation{Number: 2, Cluster: "c2", Parent: 1, ParentRevision: l.revision, Created: time.Now()}))
	_, err := Verify(t.Context(), settings, newest, restores(archive.Verified))
	require.ErrorIs(t, err, archive.ErrNotKept, "the newest generation has no full snapshot")
	of := func(generation int) Selector {
		return Selector{Full: true, Target: archive.Target{Generation: generation}}
	}
	verified, err := Verify(t.Context(), settings, of(1), restores(archive.Verified))
	require.NoError(t, err)
	assert.Equal(t, 1, verified.Generation)
	assert.Equal(t, l.revision, verified.Revision)
	_, err = Verify(t.Context(), settings, of(3), restores(archive.Verified))
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorContains(t, err, "a full snapshot of generation 3 is not available")
}

func TestVerify_gap(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	stored := settings.Store.(*memory.Store)
	head, err := settings.Archive().Head(t.Context(), 1)
	require.NoError(t, err)
	l.addMarker(t, settings.Archive(), head.Start)
	require.NoError(t, stored.Delete(t.Context(), archive.SegmentName(1, format.After(l.revision))))
	for _, choice := range []Selector{newest, {}} {
		verified, err := Verify(t.Context(), settings, choice, restores(archive.Verified))
		require.ErrorIs(t, err, ErrIncomplete)
		require.ErrorContains(t, err, "segment "+format.After(l.revision).String()+" is missing")
		assert.Equal(t, l.revision, verified.Revision)
	}
}

func TestVerifyResult_hash(t *testing.T) {
	verified := VerifyResult{Revision: 9, Outcome: archive.Verified, Hash: &format.Hash{Revision: 7}}
	assert.Contains(t, printed(t, verified), "restored revision 9 and verified it against etcd's hash at revision 7 (full snapshot")
}

func TestVerify_withSegments(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	verified, err := Verify(t.Context(), settings, Selector{Target: archive.Target{Revision: l.revision + 3}}, restores(archive.Failed))
	require.ErrorIs(t, err, ErrNotVerified)
	require.ErrorContains(t, err, "it differs")
	assert.True(t, verified.Segments)
	assert.Contains(t, printed(t, verified), "failed to restore revision 24")
	restoreTests, err := settings.Archive().RestoreTests(t.Context(), 1, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.Len(t, restoreTests, 1)
	assert.Equal(t, archive.Failed, restoreTests[0].Outcome)
}

// No unsigned result may be stored for a full snapshot, because members with trusted keys would reject the snapshot.
func TestVerify_unsignedResultIsNotStored(t *testing.T) {
	pair := formattest.NewKeys(t)
	settings := runSampleCluster(t).storeWith(t, pair.Load(t))
	settings.Keys = formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: pair.TrustedKeys})
	verified, err := Verify(t.Context(), settings, newest, restores(archive.Verified))
	require.NoError(t, err)
	assert.False(t, verified.Recorded)
	assert.Contains(t, printed(t, verified), "the result is not recorded, because")
	history, err := settings.Archive().History(t.Context())
	require.NoError(t, err)
	assert.Nil(t, history.Newest().Fulls[0].Result)
	assert.NoError(t, history.Newest().Fulls[0].Err)
}

func TestVerify_errorsAreNoResult(t *testing.T) {
	settings := runSampleCluster(t).store(t)
	failure := errors.New("no space left on device")
	_, err := Verify(t.Context(), settings, newest, func(context.Context, archive.Path) (archive.Result, error) { return archive.Result{}, failure })
	require.ErrorIs(t, err, failure)
	_, err = Verify(t.Context(), settings, Selector{Target: archive.Target{Revision: 1}}, restores(archive.Verified))
	require.ErrorIs(t, err, archive.ErrNotKept)
	_, err = Verify(t.Context(), Settings{Store: memory.New(), Keys: &format.Keys{}}, newest, restores(archive.Verified))
	require.ErrorIs(t, err, archive.ErrNotKept)
}
