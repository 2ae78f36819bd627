package datadir

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func fingerprintOf(t *testing.T, dir string) []byte {
	t.Helper()
	taken, err := TakeFingerprint(dir, "")
	require.NoError(t, err)
	return taken.Note()
}

func TestFingerprint_changesWhenEtcdOpensTheData(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, dir string){
		"killed while writing":       func(t *testing.T, dir string) { killAfterKey(t, dir, 3, 1000) },
		"killed right after startup": func(t *testing.T, dir string) { killAfterKey(t, dir, 0, 0) },
		"closed":                     func(t *testing.T, dir string) { datadirtest.RequireStarts(t, dir, "key-050") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.New(t)
			note := fingerprintOf(t, dir)
			run(t, dir)
			assert.Error(t, ChangedSince(note))
		})
	}
}

func TestFingerprint_unchangedByReading(t *testing.T) {
	dir := datadirtest.New(t)
	note := fingerprintOf(t, dir)
	require.NoError(t, result(t, dir, bootstrap.Full))
	_, err := ReadPosition(dir)
	require.NoError(t, err)
	require.NoError(t, Look(dir, "").Inspect(Identity{}, zerolog.Nop()))
	write(t, filepath.Join(dir, "member/wal/0.tmp"), "prepared")
	require.NoError(t, os.Chmod(database(dir), 0o640))
	assert.NoError(t, ChangedSince(note))
}

func TestChangedSince_namesTheChange(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"db was modified or removed": func(t *testing.T, dir string) { require.NoError(t, os.Chtimes(database(dir), time.Time{}, time.Now())) },
		"modified or removed":        func(t *testing.T, dir string) { remove(t, database(dir)) },
		"files were added":           func(t *testing.T, dir string) { write(t, filepath.Join(dir, "member/snap/1-1.snap"), "") },
		"not a directory": func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "member/wal"))
			write(t, filepath.Join(dir, "member/wal"), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadirtest.New(t)
			note := fingerprintOf(t, dir)
			change(t, dir)
			assert.ErrorContains(t, ChangedSince(note), name)
		})
	}
	dir := datadirtest.New(t)
	note := fingerprintOf(t, dir)
	other := dir + ".other"
	rename(t, dir, other)
	require.NoError(t, os.CopyFS(dir, os.DirFS(other)))
	require.ErrorContains(t, ChangedSince(note), "was modified or removed", "a copy has different inodes")
	require.ErrorContains(t, ChangedSince([]byte("{")), "cannot decode")
	require.ErrorContains(t, ChangedSince(Fingerprint{}.Note()), "no fingerprint")
}

func TestFingerprint_memberWithoutData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	note := fingerprintOf(t, dir)
	require.NoError(t, ChangedSince(note))
	datadirtest.Initialize(t, dir)
	assert.ErrorContains(t, ChangedSince(note), "files were added")
}
