package endtoend_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// chmodData sets the mode of every file and directory in the data directory.
func chmodData(p *harness.Pod, file, directory fs.FileMode) {
	p.T.Helper()
	require.NoError(p.T, filepath.WalkDir(p.DataDir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return os.Chmod(path, file)
		}
		return os.Chmod(path, directory)
	}))
}

// modesOtherThan returns the paths in the data directory whose modes differ from the given ones.
func modesOtherThan(p *harness.Pod, file, directory fs.FileMode) (others []string) {
	p.T.Helper()
	require.NoError(p.T, filepath.WalkDir(p.DataDir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		want := file
		if entry.IsDir() {
			want = directory
		}
		if err == nil && info.Mode().Perm() != want {
			others = append(others, info.Mode().String()+" "+path)
		}
		return err
	}))
	return others
}

// tree returns the mode, the modification time and a hash of each file on the volume, by path.
func tree(p *harness.Pod) map[string]string {
	p.T.Helper()
	files := map[string]string{}
	require.NoError(p.T, filepath.WalkDir(p.Volume, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		info, statErr := entry.Info()
		require.NoError(p.T, statErr)
		files[path] = fmt.Sprintf("%s %s %x", info.Mode(), info.ModTime(), sha256.Sum256(content))
		return err
	}))
	return files
}

// unchangedFile returns a function that requires that the file has not been changed or replaced since the call.
func unchangedFile(t *testing.T, path string) func() {
	t.Helper()
	before, content := inspect(t, path)
	return func() {
		t.Helper()
		after, now := inspect(t, path)
		require.Equal(t, content, now)
		require.True(t, os.SameFile(before, after), "%s has not been replaced", path)
		require.Equal(t, before.ModTime(), after.ModTime())
	}
}

func inspect(t *testing.T, path string) (os.FileInfo, []byte) {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return info, content
}
