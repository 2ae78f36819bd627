package datadir

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

const both = bootstrap.Mode("both") // of a corruption that each mode finds

func TestValidDirectoriesAreReadAndLeftAlone(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"closed":        func(*testing.T, string) {},
		"foreign files": addForeignFiles,
		"torn WAL":      tearLastRecord,
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
		"died creating the database": func(t *testing.T, dir string) {
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
			require.NoError(t, verdict(t, dir, bootstrap.Sanity))
			require.NoError(t, verdict(t, dir, bootstrap.Full))
			require.Equal(t, before, fingerprint(t, parent))
		})
	}
}

func TestCorruptionsAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		corrupt func(t *testing.T, dir string)
		mode    bootstrap.Mode // the shallowest that finds it
		path    string         // what the error names, below the data directory
		text    string
	}{
		"no database":             {func(t *testing.T, d string) { remove(t, d+"/member/snap/db") }, both, "member/snap/db", "there is no database"},
		"empty database":          {func(t *testing.T, d string) { truncate(t, d+"/member/snap/db", 0) }, both, "member/snap/db", "is empty"},
		"half a database":         {halveDatabase, both, "member/snap/db", "truncated"},
		"garbage database":        {func(t *testing.T, d string) { write(t, d+"/member/snap/db", "not a database") }, both, "member/snap/db", "cannot open"},
		"no key bucket":           {dropBucket("key"), both, "member/snap/db", `"key"`},
		"no meta bucket":          {dropBucket("meta"), both, "member/snap/db", `"meta"`},
		"strange revision":        {putRevision([]byte("short"), nil), bootstrap.Full, "member/snap/db", "invalid revision length"},
		"strange value":           {putRevision(revision(1<<40), []byte{0xff}), bootstrap.Full, "member/snap/db", "is corrupt"},
		"misplaced value":         {putRevision(revision(1<<40), nil), bootstrap.Full, "member/snap/db", "belongs to revision 0"},
		"no WAL directory":        {func(t *testing.T, d string) { remove(t, d+"/member/wal") }, both, "member/wal", "no WAL segment"},
		"no WAL and no snap":      {withoutLogs, both, "member/snap/db", "has applied entry"},
		"gap in the WAL":          {func(t *testing.T, d string) { remove(t, datadirtest.Segments(t, d)[1]) }, both, "member/wal/0000000000000002", "does not follow"},
		"segment by another name": {func(t *testing.T, d string) { write(t, d+"/member/wal/0-0.wal", "?") }, both, "member/wal/0-0.wal", "not a WAL segment"},
		"piped snapshot":          {func(t *testing.T, d string) { require.NoError(t, unix.Mkfifo(d+"/member/snap/x.snap", 0o600)) }, bootstrap.Full, "member/snap/x.snap", "is a pipe"},
		"no first segment":        {func(t *testing.T, d string) { withoutSnapshots(t, d); remove(t, datadirtest.Segments(t, d)[0]) }, bootstrap.Full, "member/wal", "cannot be replayed"},
		"no last segment":         {func(t *testing.T, d string) { remove(t, last(datadirtest.Segments(t, d))) }, bootstrap.Full, "member/wal", "ends at index"},
		"empty segment":           {func(t *testing.T, d string) { truncate(t, last(datadirtest.Segments(t, d)), 0) }, bootstrap.Full, "member/wal/", "no record"},
		"torn early segment":      {func(t *testing.T, d string) { truncate(t, datadirtest.Segments(t, d)[0], 20000) }, bootstrap.Full, "member/wal/0000000000000000-0000000000000000.wal", "unexpected EOF"},
		"flipped WAL byte":        {func(t *testing.T, d string) { datadirtest.Flip(t, datadirtest.Segments(t, d)[0], 20000) }, bootstrap.Full, "member/wal/0000000000000000-0000000000000000.wal", "crc mismatch"},
		"no last record":          {func(t *testing.T, d string) { zeroLastRecord(t, datadirtest.Segments(t, d)[0]) }, bootstrap.Full, "member/wal/0000000000000001", "crc mismatch"},
		"WAL cut short":           {zeroLastSegment, bootstrap.Full, "member/wal", "ends at index"},
		"database too old":        {emptyDatabase, bootstrap.Full, "member/snap/db", "there is a snapshot of entry"},
		"member moved away":       {func(t *testing.T, d string) { rename(t, d+"/member", d+"/member.old") }, both, "", `holds "member.old"`},
		"member is a file":        {func(t *testing.T, d string) { remove(t, d+"/member"); write(t, d+"/member", "") }, both, "member", "not a directory"},
		"file":                    {func(t *testing.T, d string) { remove(t, d); write(t, d, "") }, both, "", "not a directory"},
		"dangling link":           {func(t *testing.T, d string) { remove(t, d); require.NoError(t, os.Symlink(d+"/nowhere", d)) }, both, "", "data directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.New(t)
			test.corrupt(t, dir)
			before := fingerprint(t, filepath.Dir(dir))
			shallow := verdict(t, dir, bootstrap.Sanity)
			if test.mode == both {
				assert.ErrorContains(t, shallow, test.text)
			} else {
				assert.NoError(t, shallow)
			}
			err := verdict(t, dir, bootstrap.Full)
			require.ErrorContains(t, err, dir)
			require.ErrorContains(t, err, test.path)
			require.ErrorContains(t, err, test.text)
			require.ErrorContains(t, err, "; way out: ")
			require.Equal(t, before, fingerprint(t, filepath.Dir(dir)))
		})
	}
}

// A database that was never used is filled from the WAL, as long as that goes back to the first entry.
func TestUnusedDatabaseIsOneThatEtcdFills(t *testing.T) {
	dir := datadirtest.New(t)
	withoutSnapshots(t, dir)
	remove(t, dir+"/member/snap/db")
	update(t, dir, func(*bolt.Tx) error { return nil })
	requireValid(t, dir)
	datadirtest.RequireStarts(t, dir, datadirtest.LastKey)
}

func TestTornDirectoryIsOneThatEtcdStarts(t *testing.T) {
	dir := datadirtest.New(t)
	tearLastRecord(t, dir)
	datadirtest.RequireStarts(t, dir, datadirtest.LastKey)
}

func TestLockedDatabase(t *testing.T) {
	dir := datadirtest.New(t)
	db, err := bolt.Open(filepath.Join(dir, "member/snap/db"), 0o600, nil)
	require.NoError(t, err)
	defer db.Close()
	for _, mode := range []bootstrap.Mode{bootstrap.Sanity, bootstrap.Full} {
		err := verdict(t, dir, mode)
		require.ErrorContains(t, err, "member/snap/db: the database is locked by another process")
		assert.True(t, SaysNothing(err), "nobody has looked at the data")
	}
}

// tearLastRecord cuts the last segment in the middle of its last record.
func tearLastRecord(t *testing.T, dir string) {
	path := last(datadirtest.Segments(t, dir))
	start, end := lastRecord(t, path)
	require.Greater(t, end-start, int64(8))
	truncate(t, path, end-4)
}

// zeroLastRecord leaves a segment whole in itself, and not what the next one follows.
func zeroLastRecord(t *testing.T, path string) {
	start, end := lastRecord(t, path)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	clear(content[start:end])
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// lastRecord returns where the last record of a segment begins and ends.
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
