package stories

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// Credentials and port of the S3 server.
const (
	accessKey  = "tester"
	secretKey  = "test-secret"
	bucketPort = "7070"
)

// credentials is the content of the Secret etcd-main-backup-credentials for a bucket outside AWS.
var credentials = map[string]string{
	"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey,
	"AWS_ENDPOINT_URL": "http://" + node.Gateway + ":" + bucketPort,
}

// offerBucket starts an S3 server for the pods, creates the buckets named in the manifests, and returns the directory
// that contains my-bucket's objects.
func (w *environment) offerBucket() (folder string) {
	w.t.Helper()
	data, attributes := w.t.TempDir(), w.t.TempDir()
	for _, bucket := range []string{"my-bucket", "another-bucket"} {
		require.NoError(w.t, os.Mkdir(filepath.Join(data, bucket), 0o700), "the server provides each directory as a bucket")
	}
	command := exec.Command(cluster.Tool("versitygw"), "--access", accessKey, "--secret", secretKey, "--quiet",
		"--port", node.Gateway+":"+bucketPort, "posix", "--sidecar", attributes, data)
	command.Stdout, command.Stderr = w.t.Output(), w.t.Output()
	w.node.Serve(w.t, bucketPort, command)
	return filepath.Join(data, "my-bucket")
}

// newEnvironmentWithBucket starts a test with an S3 server and a Secret that contains its credentials.
func newEnvironmentWithBucket(t *testing.T, options ...node.Option) *environment {
	t.Helper()
	w := newEnvironment(t, options...)
	w.offerBucket()
	w.secret("etcd-main-backup-credentials", credentials)
	return w
}

// listed is the decoded output of `etcd-wrapper backup list -o json`.
type listed struct {
	Generations []struct {
		Windows []struct{ From, To int64 }
		Fulls   []struct {
			Revision int64
			Verified *struct{ Outcome string }
		}
	}
}

func (w *environment) backups(member string) (list listed, err error) {
	out, err := w.tryExec(member, "backup", "list", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	return list, err
}

// awaitVerified waits until a backup has passed its restore test.
func (w *environment) awaitVerified(member string) {
	w.t.Helper()
	cluster.Eventually(w.t, "a backup is verified", func() error {
		list, err := w.backups(member)
		if err != nil {
			return err
		}
		for _, generation := range list.Generations {
			for _, full := range generation.Fulls {
				if full.Verified != nil {
					require.Equal(w.t, "verified", full.Verified.Outcome)
					return nil
				}
			}
		}
		return errNotYet
	})
}

// checkBackups stops the writer and requires that both the cluster and its backups contain every acknowledged write.
func (w *environment) checkBackups(member string, writes *writer) {
	w.t.Helper()
	w.check(writes)
	written := w.get("written/", lastWritten()...)
	require.NotEmpty(w.t, written.Kvs)
	latest := written.Kvs[0].ModRevision
	cluster.Eventually(w.t, "the last write is backed up", func() error { return w.backedUpTo(member, latest) })
	w.awaitVerified(member)
	writes.allIn(w.t, w.exported(member))
}

func (w *environment) backedUpTo(member string, revision int64) error {
	list, err := w.backups(member)
	if err != nil {
		return err
	}
	for _, generation := range list.Generations {
		for _, window := range generation.Windows {
			if window.To >= revision {
				return nil
			}
		}
	}
	return fmt.Errorf("the backups do not reach revision %d: %w", revision, errNotYet)
}

// exported returns the keys in the latest restore point in the store.
func (w *environment) exported(member string) (keys map[string]bool) {
	w.t.Helper()
	w.exec(member, "backup", "export", "--to=latest", "/var/etcd/data/exported.db")
	file := filepath.Join(w.node.Disk(w.t, w.pods()[member], w.release+"-"+member), "exported.db")
	defer func() { assert.NoError(w.t, os.Remove(file)) }()
	return keysOf(w.t, file)
}

// keysOf returns all keys in a snapshot. In a snapshot, the "key" bucket contains a row for each revision of each
// key.
func keysOf(t *testing.T, file string) map[string]bool {
	t.Helper()
	database, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	require.NoError(t, err)
	defer database.Close()
	keys := map[string]bool{}
	require.NoError(t, database.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(_, row []byte) error {
			var pair mvccpb.KeyValue
			if err := proto.Unmarshal(row, &pair); err != nil {
				return err
			}
			keys[string(pair.Key)] = true
			return nil
		})
	}))
	return keys
}
