package folder

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/store"
)

// appendOnly is the flag of a directory in which names can be created, and none removed: `chattr +a`.
const appendOnly = 0x20

// onlyAppend has the directories of a store take what is new and let nothing go, until the test ends.
func onlyAppend(t *testing.T, s *Store) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(s.directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if err := mark(path, appendOnly); err != nil {
			t.Skipf("SKIPPED: no directory can be made append-only here: %v", err)
		}
		t.Cleanup(func() { assert.NoError(t, mark(path, 0)) })
		return nil
	}))
}

func mark(path string, flags int) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	defer directory.Close()
	return unix.IoctlSetPointerInt(int(directory.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

func TestBackupsNeedNoRightToDelete(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(t.Context(), "probe/first", strings.NewReader("x")))
	onlyAppend(t, s)
	abilities, err := store.Probe(t.Context(), s)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.ErrorIs(t, abilities.Delete, store.ErrDenied)
	require.NoError(t, s.Put(t.Context(), "probe/second", strings.NewReader("y")))
	assert.ErrorIs(t, s.Put(t.Context(), "probe/second", strings.NewReader("z")), store.ErrExists)
	assert.ErrorIs(t, s.Delete(t.Context(), "probe/second"), store.ErrDenied)
	assert.Len(t, list(t, s, "", ""), 3)
}
