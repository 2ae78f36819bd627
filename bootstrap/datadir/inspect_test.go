package datadir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// etcd cuts a torn log off, and would take it once enough failed starts have made it longer.
func TestALogThatEndsBeforeItsDatabaseIsRefused(t *testing.T) {
	for lost := range 4 {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			dir := datadirtest.Born(t)
			ends := datadirtest.EntryEnds(t, datadirtest.FirstSegment(dir))
			truncate(t, datadirtest.FirstSegment(dir), ends[len(ends)-1-lost])
			err := Inspect(dir, Identity{Name: "default"}, zerolog.Nop())
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
	err := Inspect(dir, Identity{Name: "default"}, zerolog.Nop())
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
			err := Inspect(dir, test.configured, zerolog.New(&log))
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
