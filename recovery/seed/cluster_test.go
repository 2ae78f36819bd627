package seed

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestBuild_membersOfOneCluster(t *testing.T) {
	source, _ := old(t)
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
			servers[i], err = datadirtest.Start(s.DataDir, as(s))
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
	}, patience, 10*time.Millisecond)
}

func as(s Seed) func(*embed.Config) {
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

// Tools read the members from the database, but etcd reads them from the snapshot at startup.
func TestBuild_membersInLogAndDatabase(t *testing.T) {
	source, _ := old(t)
	s := alone(filepath.Join(t.TempDir(), "new.etcd"))
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
	for index, begins := range map[uint64]uint64{0: logDistance, 1: logDistance, logDistance - 1: logDistance, logDistance: 2 * logDistance, logDistance + 5: 2 * logDistance} {
		require.Equal(t, begins, (&cluster{}).nextStart(index, logDistance))
	}
	// kept is the start of the restored database, and highest is the start of the latest cluster.
	kept, highest := uint64(100), uint64(100)
	for generation := uint64(2); generation < 20; generation++ {
		c := cluster{generation: generation}
		begins := c.nextStart(kept, logDistance)
		require.Greater(t, begins, highest, "generation %d", generation)
		highest = begins + logDistance/2
		switch generation % 4 {
		case 0:
			kept = highest // a full snapshot was taken before the cluster was lost
		case 1:
			kept = 100 // an operator returns to the first cluster
		}
	}
}

// confStateOf returns raft's configuration in the database.
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
