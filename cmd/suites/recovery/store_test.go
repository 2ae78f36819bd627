package recovery_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/harness"
)

// A store is a backup store with functions that inject faults. reconnect undoes disconnect and slow.
type store struct {
	url                   string
	env                   []string // environment variables with the credentials
	disconnect, reconnect func()
	slow                  func() // nil if not supported
}

// configure makes a pod use this store for its backups.
func (s store) configure(p *harness.Pod) {
	p.Flags = append(p.Flags, "--backup-store="+s.url, "--backup-interval=200ms")
	p.Env = append(p.Env, s.env...)
}

// A depot is a backup store in a directory. mount represents the mount point of the volume that contains it.
type depot struct {
	t     *testing.T
	mount string
	dir   string
}

func newDepot(t *testing.T) depot {
	t.Helper()
	mount := filepath.Join(t.TempDir(), "mount")
	d := depot{t, mount, filepath.Join(mount, "backups")}
	require.NoError(t, os.MkdirAll(d.dir, 0o700))
	return d
}

func (d depot) flag() string { return "--backup-store=file://" + d.dir }

func (d depot) disconnect() { require.NoError(d.t, os.Rename(d.mount, d.mount+".away")) }

func (d depot) reconnect() { require.NoError(d.t, os.Rename(d.mount+".away", d.mount)) }

func (d depot) store() store {
	return store{url: "file://" + d.dir, disconnect: d.disconnect, reconnect: d.reconnect}
}

func (d depot) archive() *archive.Archive {
	d.t.Helper()
	in, err := folder.New(d.dir)
	require.NoError(d.t, err)
	return archive.New(in, &format.Keys{})
}

func (d depot) generations() []archive.Generation {
	d.t.Helper()
	all, err := d.archive().Generations(d.t.Context())
	require.NoError(d.t, err)
	return all
}

// slowTransfer is the delay of each chunk of data that is sent to or received from a slow store.
const slowTransfer = 20 * time.Millisecond

// bucket starts an S3 server and returns a function that creates stores in a bucket, each with its own prefix and
// proxy.
func bucket(t *testing.T) func(t *testing.T, prefix string) store {
	t.Helper()
	server := servers.S3(t)
	servers.MakeS3Bucket(t, server, "bucket")
	return func(t *testing.T, prefix string) store {
		gate := newGate(t, server.Host)
		return store{
			url:        servers.S3URL("http://"+gate.address(), "bucket", prefix),
			env:        servers.S3Env(),
			disconnect: gate.cut, reconnect: gate.open, slow: func() { gate.slow(slowTransfer) },
		}
	}
}
