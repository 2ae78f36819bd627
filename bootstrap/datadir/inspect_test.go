package datadir

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// etcd cuts a torn log off, and would take it once enough failed starts have made it longer.
func TestALogThatEndsBeforeItsDatabaseIsRefused(t *testing.T) {
	for lost := range 4 {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			dir := datadirtest.Born(t)
			ends := datadirtest.EntryEnds(t, datadirtest.FirstSegment(dir))
			truncate(t, datadirtest.FirstSegment(dir), ends[len(ends)-1-lost])
			err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
			if lost == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, fmt.Sprintf("the log in %q was cut off or damaged: it ends at index %d, "+
				"while the database holds what came until %d", dir+"/member/wal", len(ends)-lost, len(ends)))
		})
	}
}

func TestADatabaseThatWasCutOffIsRefused(t *testing.T) {
	dir := datadirtest.Born(t)
	halveDatabase(t, dir)
	err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
	require.ErrorIs(t, err, errCutOff)
	require.ErrorContains(t, err, dir+"/member/snap/db: the database was cut off")
}

func TestTheDataOfAnotherMemberOfTheClusterAreRefused(t *testing.T) {
	dir := datadirtest.Born(t)
	update(t, dir, func(tx *bolt.Tx) error { // what etcd calls itself in these tests is nobody's name
		members := tx.Bucket([]byte("members"))
		id, value := members.Cursor().First()
		var owner map[string]any
		require.NoError(t, json.Unmarshal(value, &owner))
		owner["name"], owner["peerURLs"] = "etcd-1", []string{"http://b:1"}
		value, err := json.Marshal(owner)
		require.NoError(t, err)
		return members.Put(id, value)
	})
	cluster := "etcd-0=http://a:1,etcd-1=http://b:1"
	for what, test := range map[string]struct {
		configured Identity
		err, log   string
	}{
		"itself":          {configured: Identity{"etcd-1", []string{"http://b:2"}, cluster}},
		"its address":     {configured: Identity{"etcd-0", []string{"http://b:1"}, cluster}},
		"another":         {configured: Identity{"etcd-0", []string{"http://a:1"}, cluster}, err: `is that of member "etcd-1" at ["http://b:1"], not of member "etcd-0" at ["http://a:1"]`},
		"nobody's so far": {configured: Identity{"etcd-0", []string{"http://a:1"}, "etcd-0=http://a:1"}, log: "another name and other peer URLs"},
	} {
		t.Run(what, func(t *testing.T) {
			var log bytes.Buffer
			err := Look(dir, "").Inspect(test.configured, zerolog.New(&log))
			if test.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.err)
			}
			assert.Contains(t, log.String(), test.log)
			assert.Equal(t, test.log == "", log.Len() == 0)
		})
	}
}

// A member whose log is shorter than its database has acknowledged to its leader what it does not have any more.
func TestALogThatEndsBeforeItsDatabaseIsRefusedInAClusterOfAnySize(t *testing.T) {
	for learner, wayOut := range map[bool]string{
		false: "ends at index 4, while the database of this member, one of 2, holds what came until 5: power was lost while it " +
			"was behind, or the log was cut off or damaged; way out: set the data directory aside and replace the member; the others have what it lacks",
		true: "it ends at index 4, while the database holds what came until 5; way out: to keep what the database holds, ",
	} {
		t.Run(fmt.Sprintf("learner is %t", learner), func(t *testing.T) {
			dir := datadirtest.Born(t)
			addMember(t, dir, learner)
			require.NoError(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()))
			ends := datadirtest.EntryEnds(t, datadirtest.FirstSegment(dir))
			truncate(t, datadirtest.FirstSegment(dir), ends[len(ends)-2])
			err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
			require.ErrorContains(t, err, wayOut)
			require.ErrorContains(t, verdict(t, dir, bootstrap.Full), wayOut)
		})
	}
}

// A leader's snapshot is recorded in the log before its database is swapped in; the entries before were never there.
func TestALogThatEndsWithAReceivedSnapshotIsTaken(t *testing.T) {
	dir := datadirtest.Born(t)
	addMember(t, dir, false)
	log, err := wal.Open(zap.NewNop(), dir+"/member/wal", walpb.Snapshot{})
	require.NoError(t, err)
	_, _, _, err = log.ReadAll()
	require.NoError(t, err)
	require.NoError(t, log.SaveSnapshot(walpb.Snapshot{Index: 1000, Term: 2, ConfState: &raftpb.ConfState{}}))
	require.NoError(t, log.Close())
	update(t, dir, func(tx *bolt.Tx) error { // as after the swap
		return tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 1000))
	})
	require.NoError(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()))
}

func addMember(t *testing.T, dir string, learner bool) {
	t.Helper()
	update(t, dir, func(tx *bolt.Tx) error {
		value, err := json.Marshal(map[string]any{"id": 7, "isLearner": learner, "peerURLs": []string{"http://b:1"}})
		require.NoError(t, err)
		return tx.Bucket([]byte("members")).Put([]byte("0000000000000007"), value)
	})
}

// Of one kind of damage etcd says so itself. At the other it would cut the log off, and then wait for a leader until its
// failed starts have made it long enough again.
func TestDamageInWhatTheDatabaseHasIsRefusedWhereverItIsInTheLastSegment(t *testing.T) {
	dir := datadirtest.New(t)
	segment := last(datadirtest.Segments(t, dir))
	content, err := os.ReadFile(segment)
	require.NoError(t, err)
	begins, ends := datadirtest.EntryBegins(t, segment), datadirtest.EntryEnds(t, segment)
	require.Greater(t, len(begins), 10)
	for i, begin := range begins {
		for name, damage := range map[string]func(entry []byte){
			"a flipped byte": func(entry []byte) { entry[len(entry)/2] ^= 0xff },
			"a zeroed word":  func(entry []byte) { clear(entry[:8]) },
		} {
			damaged := bytes.Clone(content)
			damage(damaged[begin:ends[i]])
			require.NoError(t, os.WriteFile(segment, damaged, 0o600))
			err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop())
			if provenFlushed(t, content[ends[i]:]) {
				require.ErrorContains(t, err, fmt.Sprintf("the log in %s is damaged at position %d", segment, begin), name)
			} else { // nothing need be behind the last ones that proves anything
				require.ErrorContains(t, err, "damaged", name)
			}
			require.ErrorContains(t, err, "; way out: ", name)
		}
	}
}

// provenFlushed says whether a part of a segment begins with what proves that an entry before it was flushed, even if
// nobody knows whether its first record is whole: another entry, a hard state, and anything behind that.
func provenFlushed(t *testing.T, behind []byte) bool {
	t.Helper()
	wanted := []int64{wal.EntryType, wal.StateType}
	for frame := range (&segment{content: behind}).frames() {
		r, err := frame.parse()
		require.NoError(t, err)
		if len(wanted) == 0 {
			return true
		}
		if r.kind == wanted[0] {
			wanted = wanted[1:]
		}
	}
	return false
}

func TestALogElsewhereIsLookedAtAsAnyOther(t *testing.T) {
	dir, walDir := datadirtest.Born(t), filepath.Join(t.TempDir(), "wal")
	require.NoError(t, os.Rename(filepath.Join(dir, "member", "wal"), walDir))
	require.ErrorContains(t, Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()), "names nobody who has a vote")
	require.NoError(t, Look(dir, walDir).Inspect(Identity{Name: "default"}, zerolog.Nop()))
	segment := filepath.Join(walDir, firstSegment)
	ends := datadirtest.EntryEnds(t, segment)
	truncate(t, segment, ends[len(ends)-2])
	err := Look(dir, walDir).Inspect(Identity{Name: "default"}, zerolog.Nop())
	require.ErrorContains(t, err, fmt.Sprintf("the log in %q was cut off or damaged", walDir))
}
