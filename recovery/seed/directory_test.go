package seed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/verify"
	"go.uber.org/zap"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// patience is the timeout of every wait, generous enough for a busy machine.
const patience = time.Minute

func TestMain(m *testing.M) {
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

const keys = 120

// old returns an etcd server whose keys have a lease, and a snapshot of it.
func old(t *testing.T) (restore.Source, *embed.Etcd) {
	server, err := datadirtest.Start(filepath.Join(t.TempDir(), "old.etcd"))
	require.NoError(t, err)
	t.Cleanup(server.Close)
	client := v3client.New(server.Server)
	granted, err := client.Grant(t.Context(), 10_000)
	require.NoError(t, err)
	for i := range keys {
		_, err := client.Put(t.Context(), fmt.Sprintf("key-%03d", i), "value", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
	}
	return snapshotOf(t, server), server
}

func snapshotOf(t *testing.T, server *embed.Etcd) restore.Source {
	var content bytes.Buffer
	snapshot := server.Server.Backend().Snapshot()
	_, err := snapshot.WriteTo(&content)
	require.NoError(t, err)
	require.NoError(t, snapshot.Close())
	sum := sha256.Sum256(content.Bytes())
	content.Write(sum[:])
	return restore.Source{
		Snapshot: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content.Bytes())), nil
		},
		DatabaseBytes: int64(content.Len()),
	}
}

// alone returns the seed of a single-member cluster with the settings of datadirtest.Start.
func alone(dir string) Seed {
	return Seed{DataDir: dir, Name: "default", Token: NewToken(), Members: types.URLsMap{"default": types.MustNewURLs([]string{"http://127.0.0.1:1"})}}
}

func build(t *testing.T, s Seed, source restore.Source, above int64) Result {
	t.Helper()
	result, err := s.Build(t.Context(), source, restore.Options{Above: above})
	require.NoError(t, err)
	return result
}

func TestBuild_singleMember(t *testing.T) {
	source, before := old(t)
	s := alone(filepath.Join(t.TempDir(), "new.etcd"))
	result := build(t, s, source, 0)
	require.EqualValues(t, keys+1, result.Revision)
	require.NoDirExists(t, s.DataDir+unfinished)
	requireAccepted(t, s)

	server, err := datadirtest.Start(s.DataDir)
	require.NoError(t, err)
	defer server.Close()
	require.EqualValues(t, result.MemberID, server.Server.MemberID())
	require.EqualValues(t, result.ClusterID, server.Server.Cluster().ID())
	require.NotEqual(t, before.Server.Cluster().ID(), server.Server.Cluster().ID())
	require.NotEqual(t, before.Server.MemberID(), server.Server.MemberID())
	requireKeys(t, v3client.New(server.Server))
	members, err := v3client.New(server.Server).MemberList(t.Context())
	require.NoError(t, err)
	require.Len(t, members.Members, 1)
}

// requireAccepted runs all checks that a data directory must pass before etcd opens it, including those of etcd.
func requireAccepted(t *testing.T, s Seed) {
	t.Helper()
	warnings, err := datadir.Verify(t.Context(), s.DataDir, bootstrap.Full)
	require.NoError(t, err)
	require.Empty(t, warnings)
	var log bytes.Buffer
	identity := datadir.Identity{Name: s.Name, InitialCluster: s.Name + "=http://127.0.0.1:1", PeerURLs: []string{"http://127.0.0.1:1"}}
	require.NoError(t, datadir.Look(s.DataDir, "").Inspect(identity, zerolog.New(&log)))
	require.Empty(t, log.String())
	require.NoError(t, verify.Verify(verify.Config{DataDir: s.DataDir, ExactIndex: true, Logger: zap.NewNop()}))
}

func requireKeys(t *testing.T, client *clientv3.Client) {
	t.Helper()
	got, err := client.Get(t.Context(), "key", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, got.Kvs, keys)
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1)
	left, err := client.TimeToLive(t.Context(), leases.Leases[0].ID, clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Len(t, left.Keys, keys)
}

func TestBuild_restoredMemberAgain(t *testing.T) {
	source, _ := old(t)
	first := alone(filepath.Join(t.TempDir(), "new.etcd"))
	build(t, first, source, 1000)
	server, err := datadirtest.Start(first.DataDir)
	require.NoError(t, err)
	again := snapshotOf(t, server)
	server.Close()
	second := alone(filepath.Join(t.TempDir(), "new.etcd"))
	result := build(t, second, again, 1000)
	require.EqualValues(t, 1002, result.Revision)
	begins, err := wal.ValidSnapshotEntries(zap.NewNop(), filepath.Join(second.DataDir, "member", "wal"))
	require.NoError(t, err)
	require.EqualValues(t, 2*logDistance, begins[len(begins)-1].Index, "above all that the first one can have come to")
	requireAccepted(t, second)
	datadirtest.RequireStarts(t, second.DataDir, "key-000")
}

func TestBuild_removesAlarms(t *testing.T) {
	_, before := old(t)
	client := v3client.New(before.Server)
	_, err := before.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(before.Server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	require.NoError(t, err)
	_, err = client.Put(t.Context(), "key", "value")
	require.ErrorContains(t, err, "space")
	s := alone(filepath.Join(t.TempDir(), "new.etcd"))
	build(t, s, snapshotOf(t, before), 0)
	server, err := datadirtest.Start(s.DataDir)
	require.NoError(t, err)
	defer server.Close()
	_, err = v3client.New(server.Server).Put(t.Context(), "key", "value")
	require.NoError(t, err)
}

func TestBuild_refusals(t *testing.T) {
	unread := restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return nil, errors.New("fetched") }}
	for want, change := range map[string]func(*Seed){
		`"etcd-9" is not a member of the cluster`:           func(s *Seed) { s.Name = "etcd-9" },
		`member exists with identical ID`:                   func(s *Seed) { s.Members["other"] = s.Members["default"] },
		`the cluster has no token`:                          func(s *Seed) { s.Token = "" },
		`the directory is not empty: it contains something`: func(s *Seed) { require.NoError(t, os.MkdirAll(s.DataDir+"/something", 0o700)) },
		`not a directory`:                                   func(s *Seed) { require.NoError(t, os.WriteFile(s.DataDir, nil, 0o600)) },
	} {
		s := alone(filepath.Join(t.TempDir(), "new.etcd"))
		change(&s)
		_, err := s.Build(t.Context(), unread, restore.Options{})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "fetched")
		require.NoDirExists(t, s.DataDir+unfinished)
	}
}

func TestBuild_failureLeavesNothing(t *testing.T) {
	s := alone(filepath.Join(t.TempDir(), "new.etcd"))
	away := errors.New("the store is away")
	_, err := s.Build(t.Context(), restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return nil, away }}, restore.Options{})
	require.ErrorIs(t, err, away)
	left, err := os.ReadDir(filepath.Dir(s.DataDir))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBuild_interrupted(t *testing.T) {
	source, _ := old(t)
	s := alone(filepath.Join(t.TempDir(), "new.etcd"))
	require.NoError(t, os.MkdirAll(s.DataDir, 0o700)) // an empty directory does not count as a data directory
	require.NoError(t, os.MkdirAll(s.DataDir+unfinished+"/member/wal", 0o700))
	require.NoError(t, os.WriteFile(s.DataDir+unfinished+"/member/wal/"+strings.Repeat("0", 16)+".wal", []byte("half"), 0o600))
	s.DataDir += "/"
	build(t, s, source, 0)
	requireAccepted(t, s)
}
