package seed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/verify"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// waitTimeout is the timeout for all waits, which is generous enough for a busy machine.
const waitTimeout = time.Minute

func TestMain(m *testing.M) {
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

const keys = 120

// startOldServer starts an etcd server whose keys have a lease, and returns a snapshot of it and the server.
func startOldServer(t *testing.T) (restore.Source, *embed.Etcd) {
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

// singleMember returns the seed of a single-member cluster that has the settings of datadirtest.Start.
func singleMember(dir string) Seed {
	return Seed{DataDir: dir, Name: "default", Token: NewToken(), Members: types.URLsMap{"default": types.MustNewURLs([]string{"http://127.0.0.1:1"})}}
}

func build(t *testing.T, s Seed, source restore.Source, above int64) Result {
	t.Helper()
	result, err := s.Build(t.Context(), source, restore.Options{Above: above})
	require.NoError(t, err)
	return result
}

func TestBuild_singleMember(t *testing.T) {
	source, before := startOldServer(t)
	s := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
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

// requireAccepted runs all checks that a data directory must pass before etcd opens it, including etcd's own.
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
	source, _ := startOldServer(t)
	first := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
	build(t, first, source, 1000)
	server, err := datadirtest.Start(first.DataDir)
	require.NoError(t, err)
	again := snapshotOf(t, server)
	server.Close()
	second := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
	result := build(t, second, again, 1000)
	require.EqualValues(t, 1002, result.Revision)
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), filepath.Join(second.DataDir, "member", "wal"))
	require.NoError(t, err)
	require.EqualValues(t, 2*logDistance, snapshots[len(snapshots)-1].Index, "above every index that the first restored cluster can have reached")
	requireAccepted(t, second)
	datadirtest.RequireStarts(t, second.DataDir, "key-000")
}

func TestBuild_removesAlarms(t *testing.T) {
	_, before := startOldServer(t)
	client := v3client.New(before.Server)
	_, err := before.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(before.Server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	require.NoError(t, err)
	_, err = client.Put(t.Context(), "key", "value")
	require.ErrorContains(t, err, "space")
	s := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
	build(t, s, snapshotOf(t, before), 0)
	server, err := datadirtest.Start(s.DataDir)
	require.NoError(t, err)
	defer server.Close()
	_, err = v3client.New(server.Server).Put(t.Context(), "key", "value")
	require.NoError(t, err)
}

func TestBuild_refusals(t *testing.T) {
	unreadSource := restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return nil, errors.New("fetched") }}
	for want, change := range map[string]func(*Seed){
		`"etcd-9" is not a member of the cluster`:           func(s *Seed) { s.Name = "etcd-9" },
		`member exists with identical ID`:                   func(s *Seed) { s.Members["other"] = s.Members["default"] },
		`the cluster has no token`:                          func(s *Seed) { s.Token = "" },
		`the directory is not empty: it contains something`: func(s *Seed) { require.NoError(t, os.MkdirAll(s.DataDir+"/something", 0o700)) },
		`not a directory`:                                   func(s *Seed) { require.NoError(t, os.WriteFile(s.DataDir, nil, 0o600)) },
	} {
		s := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
		change(&s)
		_, err := s.Build(t.Context(), unreadSource, restore.Options{})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "fetched")
		require.NoDirExists(t, s.DataDir+unfinished)
	}
}

func TestBuild_failureLeavesNothing(t *testing.T) {
	s := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
	away := errors.New("store unavailable")
	_, err := s.Build(t.Context(), restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return nil, away }}, restore.Options{})
	require.ErrorIs(t, err, away)
	left, err := os.ReadDir(filepath.Dir(s.DataDir))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBuild_interrupted(t *testing.T) {
	source, _ := startOldServer(t)
	s := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
	require.NoError(t, os.MkdirAll(s.DataDir, 0o700)) // an empty directory does not count as a data directory
	require.NoError(t, os.MkdirAll(s.DataDir+unfinished+"/member/wal", 0o700))
	require.NoError(t, os.WriteFile(s.DataDir+unfinished+"/member/wal/"+strings.Repeat("0", 16)+".wal", []byte("half"), 0o600))
	s.DataDir += "/"
	build(t, s, source, 0)
	requireAccepted(t, s)
}

func TestResolvePath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(in("there"), 0o700))
	require.NoError(t, os.Symlink("there", in("relative")))
	require.NoError(t, os.Symlink(in("relative")+"/etcd", in("link")))
	require.NoError(t, os.Symlink("circle", in("circle")))
	for path, want := range map[string]string{
		"there/": "there", "relative": "there", "relative/etcd/": "there/etcd", "link": "there/etcd", "no/such/etcd": "no/such/etcd", "circle": "circle",
	} {
		assert.Equal(t, in(want), ResolvePath(in("")+"/"+path), path)
	}
}

func TestBuild_mountPoint(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount(t.TempDir(), dir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("skipped: cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	_, err := singleMember(dir).Build(t.Context(), restore.Source{Snapshot: func(context.Context) (io.ReadCloser, error) {
		t.Error("the snapshot is fetched")
		return nil, io.ErrUnexpectedEOF
	}}, restore.Options{})
	require.ErrorContains(t, err, dir+" is a mount point")
}

func TestBuild_symbolicLink(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	source, _ := startOldServer(t)
	build(t, singleMember(link), source, 0)
	target, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, dir, target)
	assert.DirExists(t, filepath.Join(dir, "member", "wal"))
}

// Build must return an error while another build has locked the directory, because the result could be a mixture of
// the two.
func TestBuild_lockedDirectory(t *testing.T) {
	plan := singleMember(filepath.Join(t.TempDir(), "etcd"))
	source, _ := startOldServer(t)
	slow, started, proceed := source, make(chan struct{}), make(chan struct{})
	slow.Snapshot = func(ctx context.Context) (io.ReadCloser, error) {
		close(started)
		<-proceed
		return source.Snapshot(ctx)
	}
	done := make(chan error, 1)
	go func() {
		_, err := plan.Build(t.Context(), slow, restore.Options{})
		done <- err
	}()
	<-started
	_, err := plan.Build(t.Context(), source, restore.Options{})
	require.ErrorContains(t, err, "cannot restore into "+plan.DataDir+": "+ErrInUse.Error())
	close(proceed)
	require.NoError(t, <-done)
	_, err = datadir.Verify(t.Context(), plan.DataDir, bootstrap.Full)
	require.NoError(t, err)
}

func TestBuild_membersOfOneCluster(t *testing.T) {
	source, _ := startOldServer(t)
	members, token := types.URLsMap{}, NewToken()
	for i := range 3 {
		members[fmt.Sprintf("etcd-%d", i)] = types.URLs{freeURL(t)}
	}
	servers := make([]*embed.Etcd, len(members))
	started := make(chan error)
	for i := range servers {
		s := Seed{DataDir: filepath.Join(t.TempDir(), "new.etcd"), Name: fmt.Sprintf("etcd-%d", i), Token: token, Members: members}
		build(t, s, source, 500)
		go func() {
			var err error
			servers[i], err = datadirtest.Start(s.DataDir, withSettings(s))
			started <- err
		}()
	}
	for range members {
		require.NoError(t, <-started)
	}
	defer func() {
		for _, server := range servers {
			server.Close()
		}
	}()
	client := v3client.New(servers[1].Server)
	requireKeys(t, client)
	put, err := client.Put(t.Context(), "after", "the restore")
	require.NoError(t, err)
	require.EqualValues(t, 502, put.Header.Revision)
	listed, err := client.MemberList(t.Context())
	require.NoError(t, err)
	require.Len(t, listed.Members, 3)
	require.Eventually(t, func() bool { // wait until the followers have caught up
		return servers[2].Server.KV().Rev() == 502
	}, waitTimeout, 10*time.Millisecond)
}

func withSettings(s Seed) func(*embed.Config) {
	return func(config *embed.Config) {
		config.Name = s.Name
		config.ListenPeerUrls, config.AdvertisePeerUrls = s.Members[s.Name], s.Members[s.Name]
		config.InitialCluster = config.InitialClusterFromName(s.Name)
		config.TickMs, config.ElectionMs = 100, 1000
	}
}

func freeURL(t *testing.T) url.URL {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return url.URL{Scheme: "http", Host: listener.Addr().String()}
}

// Build must write the members to both the database, where tools read them, and the snapshot, from which etcd reads
// them at startup.
func TestBuild_membersInLogAndDatabase(t *testing.T) {
	source, _ := startOldServer(t)
	s := singleMember(filepath.Join(t.TempDir(), "new.etcd"))
	s.Members["other"] = types.MustNewURLs([]string{"http://127.0.0.1:2"})
	build(t, s, source, 0)

	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), filepath.Join(s.DataDir, "member", "wal"))
	require.NoError(t, err)
	newest := snapshots[len(snapshots)-1]
	require.EqualValues(t, logDistance, newest.Index)
	log, err := wal.OpenForRead(zap.NewNop(), filepath.Join(s.DataDir, "member", "wal"), newest)
	require.NoError(t, err)
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	require.NoError(t, err)
	require.EqualValues(t, logDistance+1, state.Commit)
	require.Equal(t, []raftpb.Entry{{Term: firstTerm, Index: logDistance + 1}}, entries)
	confState := confStateOf(t, s)
	require.Len(t, confState.Voters, 2)
	require.Equal(t, confState, *newest.ConfState)
}

func TestBuild_startOfTheLog(t *testing.T) {
	for index, start := range map[uint64]uint64{0: logDistance, 1: logDistance, logDistance - 1: logDistance, logDistance: 2 * logDistance, logDistance + 5: 2 * logDistance} {
		require.Equal(t, start, (&cluster{}).nextStart(index, logDistance))
	}
	// restored is the index in the database that is restored next, and highest is the highest index of any cluster.
	restored, highest := uint64(100), uint64(100)
	for generation := uint64(2); generation < 20; generation++ {
		c := cluster{generation: generation}
		start := c.nextStart(restored, logDistance)
		require.Greater(t, start, highest, "generation %d", generation)
		highest = start + logDistance/2
		switch generation % 4 {
		case 0:
			restored = highest // a full snapshot was taken before the cluster was lost
		case 1:
			restored = 100 // a user restores an early revision of the first cluster
		}
	}
}

// confStateOf returns the raft configuration in the database.
func confStateOf(t *testing.T, s Seed) (state raftpb.ConfState) {
	db, err := bolt.Open(filepath.Join(s.DataDir, "member", "snap", "db"), 0, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(schema.Meta.Name())
		require.EqualValues(t, logDistance+1, binary.BigEndian.Uint64(meta.Get(schema.MetaConsistentIndexKeyName)))
		require.EqualValues(t, firstTerm, binary.BigEndian.Uint64(meta.Get(schema.MetaTermKeyName)))
		return json.Unmarshal(meta.Get(schema.MetaConfStateName), &state)
	}))
	return state
}
