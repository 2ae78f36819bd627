package datadir

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// zeroPage clears one of the database's pages.
func zeroPage(number int) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		content, err := os.ReadFile(dir + "/member/snap/db")
		require.NoError(t, err)
		clear(content[number*os.Getpagesize() : (number+1)*os.Getpagesize()])
		write(t, dir+"/member/snap/db", string(content))
	}
}

// link moves a file out of the data directory and leaves a symbolic link in its place.
func link(path func(t *testing.T, dir string) string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		from := path(t, dir)
		to := filepath.Join(filepath.Dir(dir), filepath.Base(from))
		rename(t, from, to)
		require.NoError(t, os.Symlink(to, from))
	}
}

func TestWhatEtcdCanDoWithoutIsWarnedOf(t *testing.T) {
	for name, test := range map[string]struct {
		alter     func(t *testing.T, dir string)
		structure bool // found without reading a file
		text      string
	}{
		"garbage snapshot":    {func(t *testing.T, d string) { write(t, last(datadirtest.Snapshots(t, d)), "garbage") }, false, "goes on from an older one"},
		"flipped snapshot":    {func(t *testing.T, d string) { datadirtest.Flip(t, datadirtest.Snapshots(t, d)[0], 30) }, false, "goes on from an older one"},
		"foreign snapshot":    {func(t *testing.T, d string) { write(t, d+"/member/snap/old.snap", "?") }, false, "old.snap is corrupt"},
		"snapshot directory":  {func(t *testing.T, d string) { mkdir(t, d+"/member/snap/old.snap") }, false, "old.snap is corrupt"},
		"stray segment":       {func(t *testing.T, d string) { write(t, d+"/member/wal/x.wal", "?") }, true, "etcd ignores the file"},
		"copy of a segment":   {copySegment, true, "etcd ignores the file"},
		"no first meta page":  {zeroPage(0), false, "meta page 0 is damaged"},
		"no second meta page": {zeroPage(1), false, "meta page 1 is damaged"},
		"linked database":     {link(func(_ *testing.T, d string) string { return d + "/member/snap/db" }), true, "is a symbolic link"},
		"linked segment":      {link(func(t *testing.T, d string) string { return last(datadirtest.Segments(t, d)) }), true, "is a symbolic link"},
		"linked snapshot":     {link(func(t *testing.T, d string) string { return last(datadirtest.Snapshots(t, d)) }), true, "is a symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.New(t)
			test.alter(t, dir)
			before := fingerprint(t, filepath.Dir(dir))
			warnings, err := Verify(t.Context(), dir, bootstrap.Full)
			require.NoError(t, err)
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0], test.text)
			shallow, err := Verify(t.Context(), dir, bootstrap.Sanity)
			require.NoError(t, err)
			var log bytes.Buffer
			require.NoError(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.New(&log)))
			if test.structure {
				assert.Equal(t, warnings, shallow)
				assert.Contains(t, log.String(), test.text)
			}
			require.Equal(t, before, fingerprint(t, filepath.Dir(dir)))
			datadirtest.RequireStarts(t, dir, datadirtest.LastKey)
		})
	}
}

func copySegment(t *testing.T, dir string) {
	content, err := os.ReadFile(last(datadirtest.Segments(t, dir)))
	require.NoError(t, err)
	write(t, dir+"/member/wal/copy.wal", string(content))
}

func TestASegmentThatWasGivenAnotherNameIsMissed(t *testing.T) {
	dir := datadirtest.New(t)
	rename(t, last(datadirtest.Segments(t, dir)), dir+"/member/wal/last.wal")
	require.ErrorContains(t, verdict(t, dir, bootstrap.Full), dir+"/member/wal/last.wal is not a name of a WAL segment, but the file holds entries up to")
}

// A stray name must not hide that the log was cut off.
func TestALogThatEndsBeforeItsDatabaseIsRefusedBesideAStrayFile(t *testing.T) {
	dir := datadirtest.Born(t)
	ends := datadirtest.EntryEnds(t, datadirtest.FirstSegment(dir))
	truncate(t, datadirtest.FirstSegment(dir), ends[len(ends)-2])
	write(t, dir+"/member/wal/x.wal", "?")
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), "was cut off or damaged")
}

func TestALogWithoutItsSnapshotsIsTakenOnlyIfItHoldsEverything(t *testing.T) {
	dir := datadirtest.New(t)
	for _, path := range datadirtest.Snapshots(t, dir) {
		write(t, path, "garbage")
	}
	warnings, err := Verify(t.Context(), dir, bootstrap.Full)
	require.NoError(t, err)
	require.Len(t, warnings, len(datadirtest.Snapshots(t, dir)))
	remove(t, datadirtest.Segments(t, dir)[0]) // as etcd purges it
	require.ErrorContains(t, verdict(t, dir, bootstrap.Full), "cannot be replayed from entry 0")
}

// A leader's snapshot stands for entries that the log has not: without its file etcd can't go on.
func TestALogWithAGapNeedsTheSnapshotThatFillsIt(t *testing.T) {
	written := &history{last: 10}
	leaders, err := (&walpb.Snapshot{Index: 100, Term: 2}).Marshal()
	require.NoError(t, err)
	require.NoError(t, written.takeSnapshot(leaders))
	written.committed = 100
	m := survey(t.TempDir(), "")
	require.ErrorContains(t, checkConsistency(m, written, walpb.Snapshot{Index: 5}, 100), "lacks entries")
	require.NoError(t, checkConsistency(m, written, walpb.Snapshot{Index: 100}, 100))
	written.committed = 10 // etcd was killed before it took the snapshot over
	require.NoError(t, checkConsistency(m, written, walpb.Snapshot{Index: 5}, 10))
}

// etcd fills a new database from a log that goes back to its first entry.
func TestADatabaseMayBeMissingIfTheLogHoldsEverything(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, database string){
		"missing": remove, "empty": func(t *testing.T, database string) { truncate(t, database, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Born(t)
			lose(t, dir+"/member/snap/db")
			requireValid(t, dir)
			require.NoError(t, verdict(t, dir, bootstrap.Sanity))
			datadirtest.RequireStarts(t, dir, "key")
		})
	}
}

// The data directory may be the volume itself, or be left by a start that failed.
func TestOurOwnFilesAreNoStrangers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"exit_code", "exit_code.tmp", "exit_code.crash", "exit_code.aside-123", "etcd.conf.yaml", "safe_guard", "fixtures",
		"member.unborn-20261121T223534.000Z", ".touch", "lost+found", ".snapshot",
	} {
		write(t, filepath.Join(dir, name), "?")
	}
	require.NoError(t, verdict(t, dir, bootstrap.Sanity))
	requireValid(t, dir)
	for _, name := range []string{"new.etcd", "new.etcd.part", "new.etcd.bak", "member.bak", "exit_codes"} {
		write(t, filepath.Join(dir, name), "?")
		require.ErrorContains(t, verdict(t, dir, bootstrap.Full), name)
		remove(t, filepath.Join(dir, name))
	}
}

func TestARevisionWithoutValueIsOneThatARestoreBumped(t *testing.T) {
	bump := func(compacted int64) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			if err := tx.Bucket([]byte("meta")).Put([]byte("scheduledCompactRev"), revision(compacted)); err != nil {
				return err
			}
			return tx.Bucket([]byte("key")).Put(revision(1<<40), nil)
		}
	}
	dir := datadirtest.New(t)
	update(t, dir, bump(1<<40))
	requireValid(t, dir)
	update(t, dir, bump(1<<40-1))
	require.ErrorContains(t, verdict(t, dir, bootstrap.Full), "belongs to revision 0")
}

// The log of a restored database has nothing of what the backup held: an etcd that fills a new database from it loses that.
func TestALogThatGoesOnFromARestoredDatabaseIsRefusedWithoutIt(t *testing.T) {
	pristine := restored(t)
	requireValid(t, pristine)
	for name, lose := range map[string]func(t *testing.T, dir string){
		"missing": at("member/snap", remove),
		"empty": at("member/snap", func(t *testing.T, path string) {
			remove(t, path)
			mkdir(t, path)
			write(t, path+"/db", "")
		}),
		"new": func(t *testing.T, dir string) {
			at("member/snap", remove)(t, dir)
			mkdir(t, dir+"/member/snap")
			emptyDatabase(t, dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "new.etcd")
			require.NoError(t, os.CopyFS(dir, os.DirFS(pristine)))
			lose(t, dir)
			const want = "goes on from a restored database"
			require.ErrorContains(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), want)
			require.ErrorContains(t, verdict(t, dir, bootstrap.Sanity), want)
			require.ErrorContains(t, verdict(t, dir, bootstrap.Full), want)
		})
	}
}

// A segment that is not needed any more may be lost; one that is may not.
func TestAnEmptyFirstSegmentIsMissedOnlyByALogThatIsReplayedFromIt(t *testing.T) {
	dir := datadirtest.New(t)
	truncate(t, datadirtest.Segments(t, dir)[0], 0)
	warnings, err := Verify(t.Context(), dir, bootstrap.Full)
	require.NoError(t, err)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "etcd goes on with the next one")
	withoutSnapshots(t, dir)
	require.ErrorContains(t, verdict(t, dir, bootstrap.Full), "cannot be replayed from entry 0")
	var written history
	written.beginAt("0000000000000001-0000000000000041.wal")
	written.last, written.committed = 100, 100
	require.ErrorContains(t, checkConsistency(survey(dir, ""), &written, walpb.Snapshot{Index: 0x33}, 100), "lacks entries")
	require.NoError(t, checkConsistency(survey(dir, ""), &written, walpb.Snapshot{Index: 0x40}, 100))
}
