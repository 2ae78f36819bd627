package harness

import (
	"io"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FlipBits inverts a part of a file as a disk does, whose files then look as before.
func FlipBits(t *testing.T, path string, from int64, size int) {
	t.Helper()
	before, err := os.Stat(path)
	require.NoError(t, err)
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
	require.NoError(t, os.Chtimes(path, time.Time{}, before.ModTime()))
}

// HoldClose keeps etcd's close from returning, for up to 7 s, with a request whose body never comes; release ends that.
func (p *Pod) HoldClose() (release func()) {
	p.T.Helper()
	endpoint, err := url.Parse(p.Endpoint())
	require.NoError(p.T, err)
	connection, err := net.Dial("tcp", endpoint.Host)
	require.NoError(p.T, err)
	p.T.Cleanup(func() { _ = connection.Close() }) // release may have closed it
	_, err = io.WriteString(connection, "POST /v3/kv/range HTTP/1.1\r\nHost: etcd\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(p.T, err)
	// etcd asks for the body: from now on it waits for it.
	require.NoError(p.T, connection.SetReadDeadline(time.Now().Add(Patience)))
	asked := make([]byte, len("HTTP/1.1 100 Continue"))
	_, err = io.ReadFull(connection, asked)
	require.NoError(p.T, err)
	require.Equal(p.T, "HTTP/1.1 100 Continue", string(asked))
	return func() { _ = connection.Close() }
}

// StartAndLockTheDatabase has another process open the database between the sidecar's validation and etcd's start.
func (p *Pod) StartAndLockTheDatabase(flags ...string) (run *Run, release func()) {
	p.T.Helper()
	p.Sidecar.Takes = Forever
	asked := len(p.Sidecar.Requests(StartPath))
	run = p.Start(flags...)
	Eventually(p.T, "the validation begins", func() bool { return len(p.Sidecar.Requests(StartPath)) > asked })
	release = LockFile(p.T, p.Database())
	p.Sidecar.Conclude()
	p.Sidecar.Takes = 0 // the next ones are quick again
	return run, release
}

// LockFile takes bbolt's lock as another process would.
func LockFile(t *testing.T, path string) (release func()) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() }) // released before
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	return func() { require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_UN)) }
}
