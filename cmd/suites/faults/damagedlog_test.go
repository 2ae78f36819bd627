package faults_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/cmd/suites/harness"
)

// acknowledgedPuts is the number of keys that are written one after the other before the process is killed.
const acknowledgedPuts = 60

// logDamages lists ways in which a disk can damage a log entry that it has stored. begin is the entry's offset.
var logDamages = map[string]func(content []byte, begin int64){
	"a zeroed sector":  func(content []byte, begin int64) { clear(content[begin-begin%512+512:][:512]) },
	"a zeroed length":  func(content []byte, begin int64) { clear(content[begin:][:8]) },
	"a flipped length": func(content []byte, begin int64) { content[begin+4] ^= 0x40 },
	"a flipped bit":    func(content []byte, begin int64) { content[begin+700] ^= 1 },
}

// Entries that follow a damaged log entry prove that it was acknowledged, so the wrapper must refuse to start. Plain
// etcd would drop the damaged entry and all that follow.
func TestFaultDamagedLog_provenLossIsRefused(t *testing.T) {
	t.Parallel()
	for name, damage := range logDamages {
		for _, before := range []int{2, 20, 50} {
			for _, alone := range []bool{false, true} {
				title := fmt.Sprintf("%s, %d entries before the end, standalone %t", name, before, alone)
				t.Run(title, func(t *testing.T) {
					t.Parallel()
					if before != 20 || name == "a zeroed length" {
						onlyWithFaults(t)
					}
					trial(t, "opening", "log with "+name)
					p, _ := killDuringWrites(t, alone)
					index, at := damageLog(p, before, damage)
					if alone {
						requireFailedValidation(p, index)
						return
					}
					requireRefusal(p, index, at)
					require.NoError(t, os.Truncate(wal(p), at))
					p.StartReady()
					requireKeys(p, acknowledgedPuts-before-1)
				})
			}
		}
	}
}

// A member must start if only the last entry of its log is damaged. A power loss can cause this, and the entry need
// not have been acknowledged.
func TestFaultTornLog_isServed(t *testing.T) {
	t.Parallel()
	for name, damage := range logDamages {
		if name == "a flipped bit" {
			continue // a power loss cannot cause this, and etcd does not open such a log
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "opening", "log with "+name+" at its end")
			p, last := killDuringWrites(t, false)
			index, _ := damageLog(p, 0, damage)
			run := p.StartReady()
			requireKeys(p, acknowledgedPuts-int(last-index))
			run.Shutdown()
		})
	}
}

// killDuringWrites kills a member that has never flushed its database, so that all its writes are only in the log. It
// returns the member's pod and the index of the last log entry.
func killDuringWrites(t *testing.T, alone bool) (p *harness.Pod, last uint64) {
	t.Helper()
	neverFlush := map[string]any{"backend-batch-interval": time.Hour.Nanoseconds()}
	if alone {
		p = harness.NewStandalonePod(t, neverFlush)
	} else {
		p = harness.NewPod(t)
		maps.Copy(p.Config, neverFlush)
	}
	run := p.StartReady()
	for i := range acknowledgedPuts {
		p.Put(fmt.Sprintf("key-%d", i), strings.Repeat("v", 1500))
	}
	run.Kill()
	_, ends := datadirtest.Entries(t, wal(p))
	return p, uint64(len(ends))
}

// damageLog damages the log entry that is followed by the given number of other entries. It returns the index of the
// preceding entry and the offset of the damaged entry.
func damageLog(p *harness.Pod, followed int, damage func(content []byte, begin int64)) (index uint64, begin int64) {
	p.T.Helper()
	begins, _ := datadirtest.Entries(p.T, wal(p))
	content, err := os.ReadFile(wal(p))
	require.NoError(p.T, err)
	at := len(begins) - 1 - followed
	damage(content, begins[at])
	require.NoError(p.T, os.WriteFile(wal(p), content, 0o600))
	return uint64(at), begins[at]
}

// requireRefusal requires that starts fail with an explanation of the damage, and that they do not change the log.
func requireRefusal(p *harness.Pod, index uint64, at int64) {
	p.T.Helper()
	p.ExpectTerminationMessage()
	for range 2 {
		run := p.Start()
		require.Equal(p.T, 70, run.Exit(harness.Patience))
		assertExplained(p, run, fmt.Sprintf("WAL segment %s is damaged at position %d, after index %d, and etcd would drop the "+
			"acknowledged entries that follow", wal(p), at, index))
		assertExplained(p, run, "truncate --size=POSITION SEGMENT")
		assert.False(p.T, clean(p))
		assert.Equal(p.T, "full", p.Sidecar.Modes()[len(p.Sidecar.Modes())-1])
	}
}

func requireKeys(p *harness.Pod, count int) {
	p.T.Helper()
	for i := range count {
		p.Get(fmt.Sprintf("key-%d", i))
	}
}

func requireFailedValidation(p *harness.Pod, index uint64) {
	p.T.Helper()
	p.ExpectTerminationMessage()
	run := p.Start()
	require.Equal(p.T, 70, run.Exit(harness.Patience))
	run.AwaitLine(harness.Line{"message": "validation ended", "result": "Failed", "level": "error"})
	assertExplained(p, run, fmt.Sprintf("after index %d, and etcd would drop the acknowledged entries that follow", index))
	assert.False(p.T, clean(p))
}

// If the log has been truncated, but the database contains the missing writes, the message must contain a command that
// creates a new data directory from the database.
func TestFaultTruncatedLog_databaseIsExported(t *testing.T) {
	t.Parallel()
	trial(t, "opening", "truncated log")
	p := harness.NewPod(t)
	first := p.StartReady()
	for i := range acknowledgedPuts {
		p.Put(fmt.Sprintf("key-%d", i), "value")
	}
	first.Shutdown()
	require.NoError(t, os.Truncate(wal(p), logEnd(p)/2))
	p.ExpectTerminationMessage()
	refused := p.Start()
	require.Equal(t, 70, refused.Exit(harness.Patience))
	saved := filepath.Join(p.Dir, "saved")
	assertExplained(p, refused, "etcd-wrapper etcdutl snapshot restore DIR/member/snap/db --skip-hash-check")

	_, log, status := p.Begin("etcdutl", "snapshot", "restore", p.DBPath(), "--skip-hash-check", "--data-dir", saved, "--name=etcd-main-0",
		"--initial-cluster="+p.Config["initial-cluster"].(string), "--initial-advertise-peer-urls="+p.PeerURL()).Wait()
	require.Zero(t, status, log)
	require.NoError(t, os.Rename(p.DataDir(), p.DataDir()+".moved"))
	require.NoError(t, os.Rename(saved, p.DataDir()))
	last := p.StartReady()
	requireKeys(p, acknowledgedPuts)
	last.Shutdown()
}
