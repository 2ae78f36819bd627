package datadir

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/cmd/suites/pagecache"
)

const both = bootstrap.Mode("both") // both modes detect the corruption

func TestValidDirectoriesAreReadAndLeftAlone(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"closed":          func(*testing.T, string) {},
		"unrelated files": addUnrelatedFiles,
		"torn WAL":        tearLastRecord,
		"unfinished snap": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "member/snap/0000000000000009-00000000ffffffff.snap"), "half")
		},
		"empty":  func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "member")) },
		"absent": func(t *testing.T, dir string) { remove(t, dir) },
		"only lost+found": func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "member"))
			mkdir(t, filepath.Join(dir, "lost+found"))
		},
		"empty member": func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "member"))
			mkdir(t, filepath.Join(dir, "member/snap"))
		},
		"killed while creating the database": func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "member"))
			mkdir(t, filepath.Join(dir, "member/snap"))
			write(t, filepath.Join(dir, "member/snap/db"), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.New(t)
			prepare(t, dir)
			parent := filepath.Dir(dir)
			before := fingerprint(t, parent)
			require.NoError(t, result(t, dir, bootstrap.Sanity))
			require.NoError(t, result(t, dir, bootstrap.Full))
			require.Equal(t, before, fingerprint(t, parent))
		})
	}
}

func TestCorruptionsAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		corrupt func(t *testing.T, dir string)
		mode    bootstrap.Mode // fastest mode that detects the corruption
		path    string         // file named in the error, relative to the data directory
		text    string
	}{
		"no database":           {func(t *testing.T, d string) { remove(t, d+"/member/snap/db") }, both, "member/snap/db", "does not exist"},
		"empty database":        {func(t *testing.T, d string) { truncate(t, d+"/member/snap/db", 0) }, both, "member/snap/db", "is empty"},
		"truncated database":    {halveDatabase, both, "member/snap/db", "truncated"},
		"garbage database":      {func(t *testing.T, d string) { write(t, d+"/member/snap/db", "not a database") }, both, "member/snap/db", "cannot open"},
		"no key bucket":         {dropBucket("key"), both, "member/snap/db", `"key"`},
		"no meta bucket":        {dropBucket("meta"), both, "member/snap/db", `"meta"`},
		"invalid revision":      {putRevision([]byte("short"), nil), bootstrap.Full, "member/snap/db", "invalid revision length"},
		"malformed value":       {putRevision(revision(1<<40), []byte{0xff}), bootstrap.Full, "member/snap/db", "is corrupt"},
		"misplaced value":       {putRevision(revision(1<<40), nil), bootstrap.Full, "member/snap/db", "belongs to revision 0"},
		"no WAL directory":      {func(t *testing.T, d string) { remove(t, d+"/member/wal") }, both, "member/wal", "no WAL segment"},
		"no WAL and no snap":    {withoutLogs, both, "member/snap/db", "the database has applied entry"},
		"gap in the WAL":        {func(t *testing.T, d string) { remove(t, segmentsOf(t, d)[1]) }, both, "member/wal/0000000000000002", "WAL segment missing before"},
		"misnamed segment":      {func(t *testing.T, d string) { write(t, d+"/member/wal/0-0.wal", "?") }, both, "member/wal/0-0.wal", "not a WAL segment"},
		"piped snapshot":        {func(t *testing.T, d string) { require.NoError(t, unix.Mkfifo(d+"/member/snap/x.snap", 0o600)) }, bootstrap.Full, "member/snap/x.snap", "is a named pipe"},
		"no first segment":      {func(t *testing.T, d string) { withoutSnapshots(t, d); remove(t, segmentsOf(t, d)[0]) }, bootstrap.Full, "member/wal", "cannot replay"},
		"no last segment":       {func(t *testing.T, d string) { remove(t, last(segmentsOf(t, d))) }, bootstrap.Full, "member/wal", "ends at index"},
		"empty segment":         {func(t *testing.T, d string) { truncate(t, last(segmentsOf(t, d)), 0) }, bootstrap.Full, "member/wal/", "no records"},
		"torn early segment":    {func(t *testing.T, d string) { truncate(t, segmentsOf(t, d)[0], 20000) }, bootstrap.Full, "member/wal/0000000000000000-0000000000000000.wal", "unexpected EOF"},
		"flipped WAL byte":      {func(t *testing.T, d string) { flip(t, segmentsOf(t, d)[0], 20000) }, bootstrap.Full, "member/wal/0000000000000000-0000000000000000.wal", "crc mismatch"},
		"zeroed last record":    {func(t *testing.T, d string) { zeroLastRecord(t, segmentsOf(t, d)[0]) }, bootstrap.Full, "member/wal/0000000000000001", "crc mismatch"},
		"zeroed end of the WAL": {zeroLastSegment, bootstrap.Full, "member/wal", "ends at index"},
		"database too old":      {emptyDatabase, bootstrap.Full, "member/snap/db", "but a snapshot at entry"},
		"member moved aside":    {func(t *testing.T, d string) { rename(t, d+"/member", d+"/member.old") }, both, "", `contains "member.old"`},
		"member is a file":      {func(t *testing.T, d string) { remove(t, d+"/member"); write(t, d+"/member", "") }, both, "member", "not a directory"},
		"file":                  {func(t *testing.T, d string) { remove(t, d); write(t, d, "") }, both, "", "not a directory"},
		"dangling link":         {func(t *testing.T, d string) { remove(t, d); require.NoError(t, os.Symlink(d+"/nowhere", d)) }, both, "", "data directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.New(t)
			test.corrupt(t, dir)
			before := fingerprint(t, filepath.Dir(dir))
			shallow := result(t, dir, bootstrap.Sanity)
			if test.mode == both {
				assert.ErrorContains(t, shallow, test.text)
			} else {
				assert.NoError(t, shallow)
			}
			err := result(t, dir, bootstrap.Full)
			require.ErrorContains(t, err, dir)
			require.ErrorContains(t, err, test.path)
			require.ErrorContains(t, err, test.text)
			require.ErrorContains(t, err, "; to recover: ")
			require.Equal(t, before, fingerprint(t, filepath.Dir(dir)))
		})
	}
}

// Verify must accept an unused database if the WAL reaches back to the first entry, because etcd replays the log into
// the database.
func TestVerify_unusedDatabaseAndCompleteLog(t *testing.T) {
	dir := datadirtest.New(t)
	withoutSnapshots(t, dir)
	remove(t, dir+"/member/snap/db")
	update(t, dir, func(*bolt.Tx) error { return nil })
	requireValid(t, dir)
	datadirtest.RequireStarts(t, dir, datadirtest.LastKey)
}

func TestTornLastRecord_etcdStarts(t *testing.T) {
	dir := datadirtest.New(t)
	tearLastRecord(t, dir)
	datadirtest.RequireStarts(t, dir, datadirtest.LastKey)
}

// tearLastRecord truncates the last segment in the middle of its last record.
func tearLastRecord(t *testing.T, dir string) {
	path := last(segmentsOf(t, dir))
	start, end := lastRecord(t, path)
	require.Greater(t, end-start, int64(8))
	truncate(t, path, end-4)
}

// zeroLastRecord zeroes the last record of a segment. The segment is still valid, but its checksum no longer matches
// the start of the next segment.
func zeroLastRecord(t *testing.T, path string) {
	start, end := lastRecord(t, path)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	clear(content[start:end])
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// lastRecord returns the start and the end of the last record in a segment.
func lastRecord(t *testing.T, path string) (start, end int64) {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	decoder, record := wal.NewDecoder(fileutil.NewFileReader(file)), walpb.Record{}
	for {
		err := decoder.Decode(&record)
		if errors.Is(err, io.EOF) {
			return start, end
		}
		require.NoError(t, err)
		if record.Type == wal.CrcType {
			decoder.UpdateCRC(record.Crc)
		}
		start, end = end, decoder.LastOffset()
	}
}

// zeroPage zeroes a page of the database.
func zeroPage(number int) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		content, err := os.ReadFile(dir + "/member/snap/db")
		require.NoError(t, err)
		clear(content[number*os.Getpagesize() : (number+1)*os.Getpagesize()])
		write(t, dir+"/member/snap/db", string(content))
	}
}

// link moves a file out of the data directory and replaces it with a symbolic link.
func link(path func(t *testing.T, dir string) string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		from := path(t, dir)
		to := filepath.Join(filepath.Dir(dir), filepath.Base(from))
		rename(t, from, to)
		require.NoError(t, os.Symlink(to, from))
	}
}

func TestVerify_warnings(t *testing.T) {
	for name, test := range map[string]struct {
		alter     func(t *testing.T, dir string)
		structure bool // whether Sanity mode and Inspect also return the warning
		text      string
	}{
		"garbage snapshot":        {func(t *testing.T, d string) { write(t, last(snapshotsOf(t, d)), "garbage") }, false, "starts from an older snapshot"},
		"flipped snapshot":        {func(t *testing.T, d string) { flip(t, snapshotsOf(t, d)[0], 30) }, false, "starts from an older snapshot"},
		"unknown snapshot":        {func(t *testing.T, d string) { write(t, d+"/member/snap/old.snap", "?") }, false, "old.snap is corrupt"},
		"snapshot directory":      {func(t *testing.T, d string) { mkdir(t, d+"/member/snap/old.snap") }, false, "old.snap is corrupt"},
		"misnamed segment":        {func(t *testing.T, d string) { write(t, d+"/member/wal/x.wal", "?") }, true, "etcd ignores the file"},
		"copy of a segment":       {copySegment, true, "etcd ignores the file"},
		"zeroed first meta page":  {zeroPage(0), false, "meta page 0 is damaged"},
		"zeroed second meta page": {zeroPage(1), false, "meta page 1 is damaged"},
		"linked database":         {link(func(_ *testing.T, d string) string { return d + "/member/snap/db" }), true, "is a symbolic link"},
		"linked segment":          {link(func(t *testing.T, d string) string { return last(segmentsOf(t, d)) }), true, "is a symbolic link"},
		"linked snapshot":         {link(func(t *testing.T, d string) string { return last(snapshotsOf(t, d)) }), true, "is a symbolic link"},
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
	content, err := os.ReadFile(last(segmentsOf(t, dir)))
	require.NoError(t, err)
	write(t, dir+"/member/wal/copy.wal", string(content))
}

func TestVerify_renamedSegment(t *testing.T) {
	dir := datadirtest.New(t)
	rename(t, last(segmentsOf(t, dir)), dir+"/member/wal/last.wal")
	require.ErrorContains(t, result(t, dir, bootstrap.Full), dir+"/member/wal/last.wal is not named like a WAL segment but contains entries up to")
}

// A misnamed file must not hide a truncated log.
func TestInspect_shortLogNextToMisnamedFile(t *testing.T) {
	dir := datadirtest.Initialized(t)
	_, ends := datadirtest.Entries(t, firstSegmentOf(dir))
	truncate(t, firstSegmentOf(dir), ends[len(ends)-2])
	write(t, dir+"/member/wal/x.wal", "?")
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), "was truncated or damaged")
}

func TestVerify_logWithoutSnapshots(t *testing.T) {
	dir := datadirtest.New(t)
	for _, path := range snapshotsOf(t, dir) {
		write(t, path, "garbage")
	}
	warnings, err := Verify(t.Context(), dir, bootstrap.Full)
	require.NoError(t, err)
	require.Len(t, warnings, len(snapshotsOf(t, dir)))
	remove(t, segmentsOf(t, dir)[0]) // as if etcd had purged the segment
	require.ErrorContains(t, result(t, dir, bootstrap.Full), "/wal from entry 0: ")
}

// checkConsistency must return an error if the file of a snapshot from the leader is missing, because the log does
// not contain the entries that the snapshot replaces.
func TestCheckConsistency_receivedSnapshot(t *testing.T) {
	written := &history{last: 10}
	leaders, err := (&walpb.Snapshot{Index: 100, Term: 2}).Marshal()
	require.NoError(t, err)
	require.NoError(t, written.addSnapshot(leaders))
	written.committed = 100
	m := survey(t.TempDir(), "")
	require.ErrorContains(t, checkConsistency(m, written, walpb.Snapshot{Index: 5}, 100), "depends on a snapshot")
	require.NoError(t, checkConsistency(m, written, walpb.Snapshot{Index: 100}, 100))
	written.committed = 10 // etcd was killed before applying the snapshot
	require.NoError(t, checkConsistency(m, written, walpb.Snapshot{Index: 5}, 10))
}

// Verify must accept a missing database if the log reaches back to the first entry, because etcd replays the log into
// a new database.
func TestVerify_missingDatabaseAndCompleteLog(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, database string){
		"missing": remove, "empty": func(t *testing.T, database string) { truncate(t, database, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.Initialized(t)
			lose(t, dir+"/member/snap/db")
			requireValid(t, dir)
			require.NoError(t, result(t, dir, bootstrap.Sanity))
			datadirtest.RequireStarts(t, dir, "key")
		})
	}
}

// The wrapper's own files must not count as member data, because the data directory may be the root of the volume.
func TestOurOwnFilesAreUnrelated(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"exit_code", "exit_code.tmp", "exit_code.crash", "exit_code.aside-123", "etcd.conf.yaml", "safe_guard", "fixtures",
		"member.uninitialized-20261121T223534.000Z", ".touch", "lost+found", ".snapshot",
	} {
		write(t, filepath.Join(dir, name), "?")
	}
	require.NoError(t, result(t, dir, bootstrap.Sanity))
	requireValid(t, dir)
	for _, name := range []string{"new.etcd", "new.etcd.part", "new.etcd.bak", "member.bak", "exit_codes"} {
		write(t, filepath.Join(dir, name), "?")
		require.ErrorContains(t, result(t, dir, bootstrap.Full), name)
		remove(t, filepath.Join(dir, name))
	}
}

func TestVerify_bumpedRevision(t *testing.T) {
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
	require.ErrorContains(t, result(t, dir, bootstrap.Full), "belongs to revision 0")
}

// If the database is missing, the log of a restored database must be rejected: it does not contain the backup, so the
// restored keys would be lost.
func TestRestoredLogWithoutDatabase_isRefused(t *testing.T) {
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
			const want = "belongs to a restored database"
			require.ErrorContains(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), want)
			require.ErrorContains(t, result(t, dir, bootstrap.Sanity), want)
			require.ErrorContains(t, result(t, dir, bootstrap.Full), want)
		})
	}
}

// Verify must accept an empty first segment only if etcd no longer needs the segment.
func TestVerify_emptyFirstSegment(t *testing.T) {
	dir := datadirtest.New(t)
	truncate(t, segmentsOf(t, dir)[0], 0)
	warnings, err := Verify(t.Context(), dir, bootstrap.Full)
	require.NoError(t, err)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "etcd starts with the next segment")
	withoutSnapshots(t, dir)
	require.ErrorContains(t, result(t, dir, bootstrap.Full), "/wal from entry 0: ")
	var written history
	written.startAt("0000000000000001-0000000000000041.wal")
	written.last, written.committed = 100, 100
	require.ErrorContains(t, checkConsistency(survey(dir, ""), &written, walpb.Snapshot{Index: 0x33}, 100), "depends on a snapshot")
	require.NoError(t, checkConsistency(survey(dir, ""), &written, walpb.Snapshot{Index: 0x40}, 100))
}

// result returns the error from Verify without the warnings.
func result(t testing.TB, dir string, mode bootstrap.Mode) error {
	t.Helper()
	_, err := Verify(t.Context(), dir, mode)
	return err
}

func write(t *testing.T, path, content string) {
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func mkdir(t *testing.T, path string) { require.NoError(t, os.MkdirAll(path, 0o700)) }

func remove(t *testing.T, path string) { require.NoError(t, os.RemoveAll(path)) }

func rename(t *testing.T, from, to string) { require.NoError(t, os.Rename(from, to)) }

func truncate(t *testing.T, path string, length int64) { require.NoError(t, os.Truncate(path, length)) }

func last(paths []string) string { return paths[len(paths)-1] }

func withoutSnapshots(t *testing.T, dir string) {
	for _, path := range snapshotsOf(t, dir) {
		remove(t, path)
	}
}

func withoutLogs(t *testing.T, dir string) {
	withoutSnapshots(t, dir)
	remove(t, dir+"/member/wal")
}

// zeroLastSegment zeroes the last segment except for its start, as if etcd had not written any more records.
// Checksums cannot detect this.
func zeroLastSegment(t *testing.T, dir string) {
	path := last(segmentsOf(t, dir))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	clear(content[2000:])
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

func addUnrelatedFiles(t *testing.T, dir string) {
	for _, name := range []string{"notes", "member/notes", "member/wal/0.tmp", "member/wal/x.wal.broken", "member/snap/db.tmp1", "member/snap/x.snap.broken"} {
		write(t, filepath.Join(dir, name), "?")
	}
}

// update uses bbolt to change the database, so all pages remain consistent.
func update(t *testing.T, dir string, change func(tx *bolt.Tx) error) {
	db, err := bolt.Open(dir+"/member/snap/db", 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(change))
	require.NoError(t, db.Close())
}

func dropBucket(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		update(t, dir, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(name)) })
	}
}

func putRevision(key, value []byte) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		update(t, dir, func(tx *bolt.Tx) error { return tx.Bucket([]byte("key")).Put(key, value) })
	}
}

func revision(main int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: main}, mvcc.NewRevBytes())
}

// emptyDatabase replaces the database with a new one that has the same buckets.
func emptyDatabase(t *testing.T, dir string) {
	remove(t, dir+"/member/snap/db")
	update(t, dir, func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("key"))
		require.NoError(t, err)
		_, err = tx.CreateBucket([]byte("meta"))
		return err
	})
}

func halveDatabase(t *testing.T, dir string) {
	truncate(t, dir+"/member/snap/db", usedBytes(t, dir)/2)
}

// fingerprint maps all paths under dir to their type, modification time and content.
func fingerprint(t *testing.T, dir string) map[string]string {
	t.Helper()
	prints := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			content, err = os.ReadFile(path)
		}
		prints[path] = fmt.Sprintf("%s %d %s %x", info.Mode(), info.Size(), info.ModTime(), sha256.Sum256(content))
		return err
	}))
	return prints
}

// preload must read the whole file into the page cache. A sparse file keeps the test fast.
func TestPreload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	pagecache.RequireDisk(t, filepath.Dir(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 100<<20))
	require.NotEqual(t, 1.0, pagecache.Share(t, path))
	defer preload(path)()
	// The kernel may evict some pages if memory is scarce.
	assert.Eventually(t, func() bool { return pagecache.Share(t, path) > 0.9 }, time.Minute, 10*time.Millisecond)
}
