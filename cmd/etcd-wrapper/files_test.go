package main_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chmodData gives every file and every directory of the data directory a mode.
func (p *place) chmodData(file, directory fs.FileMode) {
	p.t.Helper()
	require.NoError(p.t, filepath.WalkDir(p.data(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return os.Chmod(path, file)
		}
		return os.Chmod(path, directory)
	}))
}

// modesOtherThan lists what has another mode.
func (p *place) modesOtherThan(file, directory fs.FileMode) (others []string) {
	p.t.Helper()
	require.NoError(p.t, filepath.WalkDir(p.data(), func(path string, entry fs.DirEntry, err error) error {
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

// tree is a fingerprint of every file below the volume.
func (p *place) tree() map[string]string {
	p.t.Helper()
	files := map[string]string{}
	require.NoError(p.t, filepath.WalkDir(p.volume, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		info, statErr := entry.Info()
		require.NoError(p.t, statErr)
		files[path] = fmt.Sprintf("%s %s %x", info.Mode(), info.ModTime(), sha256.Sum256(content))
		return err
	}))
	return files
}

// untouched returns a function that says that the file at path is still the same one, byte for byte.
func untouched(t *testing.T, path string) func() {
	t.Helper()
	before, content := inspect(t, path)
	return func() {
		t.Helper()
		after, now := inspect(t, path)
		require.Equal(t, content, now)
		require.True(t, os.SameFile(before, after), "%s is the same file", path)
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

// flipBits inverts a part of a file.
func flipBits(t *testing.T, path string, from int64, size int) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close() // a test file
	part := make([]byte, size)
	_, err = file.ReadAt(part, from)
	require.NoError(t, err)
	for i := range part {
		part[i] = ^part[i]
	}
	_, err = file.WriteAt(part, from)
	require.NoError(t, err)
}

// holdClose keeps etcd's close from returning, for up to 7 s, with a request whose body never comes; release ends that.
func (p *place) holdClose() (release func()) {
	p.t.Helper()
	endpoint, err := url.Parse(p.endpoint())
	require.NoError(p.t, err)
	connection, err := net.Dial("tcp", endpoint.Host)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = connection.Close() }) // release may have closed it
	_, err = io.WriteString(connection, "POST /v3/kv/range HTTP/1.1\r\nHost: etcd\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(p.t, err)
	// etcd asks for the body: from now on it waits for it.
	require.NoError(p.t, connection.SetReadDeadline(time.Now().Add(soon)))
	asked := make([]byte, len("HTTP/1.1 100 Continue"))
	_, err = io.ReadFull(connection, asked)
	require.NoError(p.t, err)
	require.Equal(p.t, "HTTP/1.1 100 Continue", string(asked))
	return func() { _ = connection.Close() }
}
