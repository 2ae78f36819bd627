package endtoend_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// explanationLimit limits how long a member may take to report a problem and its solution.
const explanationLimit = 30 * time.Second

// requireExplanation requires that a member's log and status contain the given text within explanationLimit.
func requireExplanation(t *testing.T, run *harness.Run, words string) {
	t.Helper()
	watch := harness.StartWatch()
	run.AwaitLine(harness.Line{"message": words, "level": "warn"})
	assert.Less(t, watch.Duration(), explanationLimit)
	require.NotNil(t, run.Status().Recovery)
	assert.Contains(t, run.Status().Recovery.Reason, words)
}

// If a second member is added as a voter, the cluster has no quorum until this member is running. The member must be
// able to start nevertheless.
func TestSecondMember_addedAsVoter(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := &three{T: t, pods: harness.StandaloneMembers(t, 2)}
	first, second, both := c.pods[0], c.pods[1], c.pods[0].Config["initial-cluster"]
	first.Config["initial-cluster"] = fmt.Sprintf("%s=%s", first.Config["name"], first.PeerURL())
	first.WriteConfigFile()
	run := first.StartReady()
	first.Put("key", "value")
	_, log, status := first.Begin("etcdctl", "member", "add", fmt.Sprint(second.Config["name"]), "--peer-urls="+second.PeerURL()).Wait()
	require.Zero(t, status, log)
	second.Config["initial-cluster"], second.Config["initial-cluster-state"] = both, "existing"
	second.WriteConfigFile()
	second.StartReady()
	run.AwaitReady()
	assert.Equal(t, "value", second.Get("key"))
}

// If one of two members is lost, the cluster has no quorum, so that only a user can repair it. The messages must
// explain how.
func TestLostMember_oneOfTwo(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	for name, test := range map[string]struct {
		stored  bool
		message string
		repair  func(c *three)
	}{
		"without a store": {false, "set force-new-cluster: true", func(c *three) {
			first := c.pods[0]
			c.runs[0].Kill()
			first.Config["force-new-cluster"] = true
			first.WriteConfigFile()
			c.runs[0] = first.StartReady()
			c.runs[1].AwaitReady()
			c.runs[0].Shutdown()
			delete(first.Config, "force-new-cluster")
			first.WriteConfigFile()
			c.runs[0] = first.StartReady()
		}},
		"with a store": {true, "start all of them with --restore-to=latest and the same new --restore-id", func(c *three) {
			flags := []string{"--restore-to=latest", "--restore-id=second-lost"}
			for i, run := range c.runs {
				run.Kill()
				c.runs[i] = c.pods[i].Start(flags...)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var flags []string
			if test.stored {
				store := filepath.Join(t.TempDir(), "store")
				require.NoError(t, os.Mkdir(store, 0o700))
				flags = append(flags, "--backup-store=file://"+store, "--backup-interval=200ms")
			}
			c := startThree(t, harness.StandaloneMembers(t, 2), flags...)
			if test.stored {
				c.runs[0].AwaitStored(c.pods[0].Revision())
			}
			c.runs[1].LoseVolume()
			c.runs[1] = c.pods[1].Start()
			requireExplanation(t, c.runs[1], "the cluster has 2 voting members: the other members do not form a quorum, so this member cannot be replaced")
			assert.Contains(t, c.runs[1].Status().Recovery.Reason, test.message)
			test.repair(c)
			for _, run := range c.runs {
				run.AwaitReady()
			}
			for _, p := range c.pods {
				assert.Equal(t, "value", p.Get("key"))
			}
		})
	}
}

// If two of three members are lost, both must explain that the remaining member does not form a quorum and how to
// proceed.
func TestLostMember_twoOfThree(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := newThree(t)
	for _, run := range c.runs[1:] {
		run.LoseVolume()
	}
	for i, p := range c.pods[1:] {
		c.runs[i+1] = p.Start()
	}
	requireExplanation(t, c.runs[1], "of 3 voting members, only etcd-main-0 responded, but 2 are needed; etcd-main-2 is not running etcd and has no usable data; if the missing data is lost for good, set force-new-cluster: true")
	requireExplanation(t, c.runs[2], "etcd-main-1 is not running etcd and has no usable data")
}

// If the volumes of all members are rolled back to the same older state, the cluster must be restored from its store,
// which contains later writes.
func TestAllMembersRolledBack_restored(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := storedThree(t)
	for _, run := range c.runs {
		run.Shutdown()
	}
	var copies []string
	for _, p := range c.pods {
		copies = append(copies, filepath.Join(p.Dir, "old"))
		require.NoError(t, os.CopyFS(copies[len(copies)-1], os.DirFS(p.Volume)))
	}
	runs := c.restart()
	c.pods[1].Put("later", "value")
	later := c.pods[1].Revision()
	harness.Eventually(t, "the write is in the store", func() bool {
		for _, run := range runs {
			if backup := run.Status().Backup; backup != nil && backup.Revision >= later {
				return true
			}
		}
		return false
	})
	for i, run := range runs {
		run.Kill()
		require.NoError(t, os.RemoveAll(c.pods[i].Volume))
		require.NoError(t, os.CopyFS(c.pods[i].Volume, os.DirFS(copies[i])))
	}
	c.restart()
	assert.Equal(t, "value", c.pods[0].Get("later"))
	for _, p := range c.pods {
		assert.Len(t, preserved(p), 1, "the old data is preserved")
	}
}
