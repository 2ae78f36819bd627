package s3

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/backup/store/wire"
)

// awkward is a prefix with everything that has to be escaped somewhere.
const awkward = "pre fix/ü+%41&=;@:#/"

func TestS3KeepsTheContractOnAServer(t *testing.T) {
	endpoint := servers.S3(t)
	bucket := &buckets{}
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return bucket.next(t, endpoint) },
		Server: endpoint,
		Through: func(t *testing.T, proxied *url.URL) store.Store {
			return opened(t, proxied, bucket.next(t, endpoint).bucket)
		},
		Missing: func(t *testing.T) store.Store { return opened(t, endpoint, "missing") },
		Denied: func(t *testing.T) store.Store {
			existing := bucket.next(t, endpoint).bucket
			t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
			return open(t, endpoint, existing)
		},
	})
}

type buckets struct{ made int }

// next makes a bucket.
func (b *buckets) next(t *testing.T, endpoint *url.URL) *Store {
	b.made++
	s := opened(t, endpoint, "bucket-"+string(rune('a'+b.made)))
	require.NoError(t, client(t, endpoint).MakeBucket(t.Context(), s.bucket, minio.MakeBucketOptions{}))
	return s
}

// client returns another implementation of the protocol.
func client(t *testing.T, endpoint *url.URL) *minio.Core {
	core, err := minio.NewCore(endpoint.Host, &minio.Options{Creds: credentials.NewStaticV4(servers.S3Access, servers.S3Secret, "")})
	require.NoError(t, err)
	return core
}

// opened uses the keys of the server.
func opened(t *testing.T, endpoint *url.URL, bucket string) *Store {
	t.Setenv("AWS_SECRET_ACCESS_KEY", servers.S3Secret)
	return open(t, endpoint, bucket)
}

func open(t *testing.T, endpoint *url.URL, bucket string) *Store {
	t.Setenv("AWS_ACCESS_KEY_ID", servers.S3Access)
	s, err := New(wire.Place{Bucket: bucket, Prefix: awkward, Endpoint: endpoint}, "", true)
	require.NoError(t, err)
	return s
}

func TestAbandonedUploadsAreAbortedOnAServer(t *testing.T) {
	endpoint := servers.S3(t)
	s, core := (&buckets{}).next(t, endpoint), client(t, endpoint)
	left := func(key string) {
		id, err := core.NewMultipartUpload(t.Context(), s.bucket, key, minio.PutObjectOptions{})
		require.NoError(t, err)
		_, err = core.PutObjectPart(t.Context(), s.bucket, key, id, 1, strings.NewReader("part"), 4, minio.PutObjectPartOptions{})
		require.NoError(t, err)
	}
	left(awkward + "gen/000001/full/a/data")
	left("somebody else's")
	removed, err := store.Sweep(t.Context(), s)
	require.NoError(t, err)
	require.Zero(t, removed, "a writer may be slow")
	removed, err = s.sweep(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	removed, err = s.sweep(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, removed, "it is gone, and others' are left alone")
}

func TestALockedBucketTakesBackupsOnAServer(t *testing.T) {
	endpoint := servers.S3(t)
	s, core := opened(t, endpoint, "locked"), client(t, endpoint)
	require.NoError(t, core.MakeBucket(t.Context(), s.bucket, minio.MakeBucketOptions{ObjectLocking: true}))
	mode, validity, unit := minio.Governance, uint(1), minio.Days
	require.NoError(t, core.SetBucketObjectLockConfig(t.Context(), s.bucket, &mode, &validity, &unit))
	abilities, err := store.Probe(t.Context(), s)
	require.NoError(t, err)
	require.True(t, abilities.CreateIfAbsent)
	require.ErrorIs(t, abilities.Delete, store.ErrLocked)
	for range 2 {
		_, err = store.PutOnce(t.Context(), s, "a", strings.NewReader("x"))
		require.NoError(t, err)
	}
	_, err = store.PutOnce(t.Context(), s, "a", strings.NewReader("y"))
	require.ErrorIs(t, err, store.ErrExists)
	require.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrLocked)
}
