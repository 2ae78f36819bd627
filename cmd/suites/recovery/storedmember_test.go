package recovery_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/cmd/suites/harness"
)

// A storedMember is a stopped single member with a key whose value is "new". oldVolume is a copy of its volume from
// when the value was "old".
type storedMember struct {
	*harness.Pod
	depot
	oldVolume string
}

func newStoredMember(t *testing.T) *storedMember {
	t.Helper()
	l := &storedMember{Pod: harness.NewStandalonePod(t, nil), depot: newDepot(t)}
	l.Flags = append(l.Flags, l.flag())
	for _, value := range []string{"old", "new"} {
		run := l.StartReady()
		l.Put("key", value)
		run.Shutdown()
		run.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
		if value == "old" {
			l.oldVolume = copyVolume(l.Pod)
		}
	}
	return l
}

// volumes lists functions that bring the member's volume into a state.
var volumes = map[string]func(l *storedMember){
	"valid":       func(*storedMember) {},
	"rolled back": func(l *storedMember) { restoreVolume(l.Pod, l.oldVolume) },
	"broken":      func(l *storedMember) { breakDatabase(l.Pod) },
	"empty":       func(l *storedMember) { emptyVolume(l.Pod) },
	"without a cluster ID": func(l *storedMember) {
		require.NoError(l.T, os.Remove(filepath.Join(l.DataDir(), archive.IdentityFile)))
		require.NoError(l.T, os.RemoveAll(filepath.Join(l.Volume, "backup.spool")))
	},
}

// stores lists functions that bring the member's store into a state, or make it use a store in this state.
var stores = map[string]func(l *storedMember){
	"this cluster's": func(*storedMember) {},
	"empty": func(l *storedMember) {
		require.NoError(l.T, os.RemoveAll(l.dir))
		require.NoError(l.T, os.Mkdir(l.dir, 0o700))
	},
	"without full snapshots": func(l *storedMember) {
		require.NoError(l.T, os.RemoveAll(filepath.Join(l.dir, "gen", "000001", "full")))
	},
	"unreachable": func(l *storedMember) { l.disconnect() },
	"another cluster's": func(l *storedMember) {
		other := newDepot(l.T)
		_, err := other.archive().Create(l.T.Context(), archive.Cluster{Cluster: "abc123", Created: time.Now()}, 1)
		require.NoError(l.T, err)
		l.Flags = append(l.Flags, other.flag())
	},
	"damaged": func(l *storedMember) {
		for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
			harness.CorruptFile(l.T, filepath.Join(l.dir, name), 0, 10)
		}
	},
	"not trusted": func(l *storedMember) {
		keys := formattest.NewKeys(l.T)
		l.Flags = append(l.Flags, "--backup-signing-key="+keys.SigningKey, "--backup-trusted-keys="+keys.TrustedKeys)
	},
	"none": func(l *storedMember) { l.Flags = append(l.Flags, "--backup-store=") },
}

// count returns the number of keys in etcd.
func (l *storedMember) count() int64 {
	ctx, cancel := context.WithTimeout(l.T.Context(), harness.Patience)
	defer cancel()
	reply, err := l.Etcd().Get(ctx, "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(l.T, err)
	return reply.Count
}

// requireRefused requires that a start fails for the given reason and does not change the data.
func (l *storedMember) requireRefused(reason string) {
	l.T.Helper()
	l.ExpectTerminationMessage()
	before := l.files()
	run := l.Start()
	require.Equal(l.T, 70, run.Exit(harness.Patience))
	message, err := os.ReadFile(l.TerminationMessage())
	require.NoError(l.T, err)
	assert.Contains(l.T, string(message), reason)
	assert.Equal(l.T, before, l.files(), "the data is not moved")
}

// files returns the paths of the data directory, of its copies, and of the files in the data directory.
func (l *storedMember) files() (all []string) {
	l.T.Helper()
	for _, pattern := range []string{"*.etcd*", "*.etcd/*/*/*"} {
		found, err := filepath.Glob(filepath.Join(l.Volume, pattern))
		require.NoError(l.T, err)
		all = append(all, found...)
	}
	return all
}
