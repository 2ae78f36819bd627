package disk

import (
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRead_symbolicLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tls.crt")
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))
	require.NoError(t, os.Symlink(path, path+".link"))
	for _, path := range []string{path, path + ".link"} {
		content, err := Read(path, 7)
		require.NoError(t, err)
		assert.Equal(t, "content", string(content))
	}
	_, err := Read(path, 6)
	require.EqualError(t, err, "larger than 6 bytes")
	_, err = ReadHere(path+".link", 7)
	assert.ErrorIs(t, err, syscall.ELOOP)
}

func TestRead_irregularFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	for _, path := range []string{path, t.TempDir(), "/dev/zero"} {
		_, err := Read(path, 1)
		require.EqualError(t, err, "not a regular file")
	}
	_, err := Read(path+".absent", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.NotContains(t, err.Error(), path)
}

// On a hanging mount, only the first read may wait for the time limit, and only one goroutine may block. Every read
// after the first one must fail immediately.
func TestRead_hangingMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var started atomic.Int32
		hanging := func() ([]byte, error) {
			started.Add(1)
			<-answer
			return []byte("late"), nil
		}
		path := t.Name()
		start := time.Now()
		_, err := readWithin(path, hanging)
		require.ErrorIs(t, err, ErrHangs)
		require.Equal(t, readTimeout, time.Since(start))
		for range 10 {
			_, err = readWithin(path, hanging)
			require.ErrorIs(t, err, ErrHangs)
		}
		require.Equal(t, readTimeout, time.Since(start), "later reads must fail immediately")
		require.EqualValues(t, 1, started.Load())

		close(answer)
		synctest.Wait()
		content, err := readWithin(path, hanging)
		require.NoError(t, err)
		require.Equal(t, "late", string(content))
		require.EqualValues(t, 2, started.Load(), "a new read must start once the hanging read has ended")
	})
}

func TestReadRoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(path, root, 0o600))
	pool, err := ReadRoots(path)
	require.NoError(t, err)
	_, err = server.Certificate().Verify(x509.VerifyOptions{Roots: pool})
	require.NoError(t, err)
	for content, reason := range map[string]string{
		"":           "CA bundle " + path + " contains no certificates",
		"-----BEGIN": "CA bundle " + path + " contains no certificates",
		string(root) + strings.Repeat("\n", maxBundle): "cannot read CA bundle " + path + ": larger than 1048576 bytes",
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := ReadRoots(path)
		assert.EqualError(t, err, reason)
	}
	_, err = ReadRoots(path + ".absent")
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func FuzzRead(f *testing.F) {
	f.Add("x", int64(1))
	f.Fuzz(func(t *testing.T, content string, limit int64) {
		if limit < 0 || limit > 1<<20 {
			t.Skip("limit out of range")
		}
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		read, err := Read(path, limit)
		if int64(len(content)) > limit {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, content, strings.Clone(string(read)))
	})
}
