package endtoend_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/harness"
)

// dataLosses lists ways in which a stopped member loses its data.
var dataLosses = map[string]struct {
	inflict func(c *three, p *harness.Pod)
	message string // logged by the next start
	copies  int    // number of copies of the data that the next start preserves
}{
	"lost": {func(_ *three, p *harness.Pod) { emptyVolume(p) }, "the volume is empty; getting the data from ", 0},
	"broken": {func(_ *three, p *harness.Pod) {
		harness.CorruptFile(p.T, p.DBPath(), 0, 16<<10)
	}, "the data on the volume cannot be used: ", 1},
	"rolled back": {func(c *three, p *harness.Pod) {
		old := filepath.Join(p.Dir, "old")
		require.NoError(c, os.CopyFS(old, os.DirFS(p.Volume)))
		run := p.StartReady()
		for range 10 {
			p.Put("later", "value")
		}
		run.Kill()
		require.NoError(c, os.RemoveAll(p.Volume))
		require.NoError(c, os.CopyFS(p.Volume, os.DirFS(old)))
	}, "the data on the volume cannot be used: ", 1},
}

func TestLostMember_rejoins(t *testing.T) {
	t.Parallel()
	for name, loss := range dataLosses {
		t.Run(name, func(t *testing.T) {
			if name != "lost" {
				onlyWithMembers(t)
			}
			t.Parallel()
			c := newThree(t)
			last := c.pods[2]
			c.runs[2].Kill()
			loss.inflict(c, last)

			run := last.StartReady()
			run.AwaitLine(harness.Line{"message": loss.message, "level": "warn"})
			c.requireAllVoters()
			assert.Len(t, preserved(last), loss.copies, "the old data is preserved")
			run.Kill()
			again := last.StartReady()
			c.requireAllVoters()
			again.Shutdown()
		})
	}
}

// steps lists log lines of a member that rejoins after it has lost its data, in order.
var steps = []harness.Line{
	{"message": "the data on the volume cannot be used: "},
	{"message": "removed this member's old ID"},
	{"message": "added this member to the cluster again"},
	{"from": "AskPeers", "to": "Ready"},
	{"message": "starting etcd"},
	{"message": "etcd has joined its cluster"},
}

// The member must rejoin even if it is killed after any of these steps.
func TestLostMember_killedWhileRejoining(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := newThree(t)
	last := c.pods[2]
	run := c.runs[2]
	run.Kill()
	for round, step := range steps {
		harness.CorruptFile(t, last.DBPath(), 0, 16<<10)
		run = last.Start()
		run.AwaitLine(step)
		run.Kill()
		run = last.StartReady()
		c.requireAllVoters()
		assert.GreaterOrEqual(t, len(preserved(last)), round+1, "the data of each round is preserved, even if etcd was killed while it was starting")
		run.Kill()
	}
}

// In a cluster with a 100 MB database, a member with an empty volume must be a voter again within 30 s. Meanwhile, the
// other members must acknowledge writes at least every 5 s.
func TestLostMember_largeDatabase(t *testing.T) {
	onlyWithMembers(t)
	c := newThree(t)
	value := strings.Repeat("v", 1<<20)
	for i := range 100 {
		c.pods[0].Put(fmt.Sprintf("large-%d", i), value)
	}
	c.runs[2].LoseVolume()
	etcd := c.pods[0].Etcd()
	etcd.SetEndpoints(c.pods[0].Endpoint(), c.pods[1].Endpoint())
	longest, failed := time.Duration(0), 0
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for last := time.Now(); ctx.Err() == nil; {
			within, cancel := context.WithTimeout(ctx, time.Second)
			if _, err := etcd.Put(within, "key", "value"); err == nil {
				longest, last = max(longest, time.Since(last)), time.Now()
			} else if ctx.Err() == nil {
				failed++
			}
			cancel()
		}
	})
	watch, start := harness.StartWatch(), time.Now()
	c.pods[2].StartReady()
	took, real := watch.Duration(), time.Since(start)
	stop()
	writing.Wait()
	t.Logf("voter again after %s (%s as measured by a Watch); longest gap between two writes: %s; %d writes failed",
		real.Round(time.Millisecond), took.Round(time.Millisecond), longest.Round(time.Millisecond), failed)
	assert.Less(t, took, 30*time.Second)
	assert.Less(t, longest, 5*time.Second)
	c.requireAllVoters()
}

func TestAllMembersLost_restored(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]func(p *harness.Pod){
		"all volumes are lost": emptyVolume,
		"all volumes are broken": func(p *harness.Pod) {
			harness.CorruptFile(p.T, p.DBPath(), 0, 16<<10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "all volumes are lost" {
				onlyWithMembers(t)
			}
			t.Parallel()
			c := storedThree(t)
			before := c.pods[0].Revision()
			for i, run := range c.runs {
				run.Kill()
				action(c.pods[i])
			}
			runs := c.restart()
			assert.Greater(t, c.pods[1].Revision(), max(before, archive.Margin), "the restored cluster skips the revisions that the store has reserved, so that none is assigned twice")
			for _, run := range runs {
				run.Kill()
			}
			c.restart()
		})
	}
}

// A lost member must be replaced even if peers use auto-tls, in which case etcd creates the peer certificates at
// startup and does not verify them.
func TestLostMember_autoTLS(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := stored(t, harness.StandaloneMembers(t, 3, autoPeerTLS))
	last := c.pods[2]
	c.runs[2].LoseVolume()
	c.runs[2] = last.StartReady()
	c.runs[2].AwaitLine(harness.Line{"message": dataLosses["lost"].message, "level": "warn"})
	c.requireAllVoters()

	before := c.pods[0].Revision()
	for _, run := range c.runs {
		run.LoseVolume()
	}
	c.restart()
	assert.Greater(t, c.pods[1].Revision(), max(before, archive.Margin), "the restored cluster skips the revisions that the store has reserved, so that none is assigned twice")
}

func TestRestore_threeMembers(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := storedThree(t)
	to := c.pods[0].Revision()
	c.pods[1].Put("key", "a mistake")
	for _, run := range c.runs {
		run.Shutdown()
	}
	flags := []string{fmt.Sprintf("--restore-to=revision:%d", to), "--restore-id=mistake"}
	first := c.pods[0].Start(flags...)
	first.AwaitLine(harness.Line{"message": "waiting until every member has stopped and requests the same restore"})
	first.Kill()
	for _, run := range c.restart(flags...) {
		run.Shutdown()
	}
	for _, p := range c.pods {
		assert.Len(t, preserved(p), 1, "each member preserves its old data")
	}
	c.restart(flags...)
	for _, p := range c.pods {
		assert.Len(t, preserved(p), 1, "a restore ID that was already used has no effect")
	}
}

// enableAuthentication enables authentication, after creating users with the root role and the password "secret".
func enableAuthentication(t *testing.T, etcd *clientv3.Client, users ...string) {
	t.Helper()
	for _, user := range users {
		_, err := etcd.UserAdd(t.Context(), user, "secret")
		require.NoError(t, err)
		_, err = etcd.UserGrantRole(t.Context(), user, "root")
		require.NoError(t, err)
	}
	_, err := etcd.AuthEnable(t.Context())
	require.NoError(t, err)
}

// In a cluster with TLS and authentication, recovery must use etcd's certificates to query the other members. To
// change the membership, it needs the root password, and must ask for it in the log.
func TestLostMember_TLSAndAuthentication(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := startThree(t, harness.StandaloneMembers(t, 3, peerTLS, clientTLS))
	enableAuthentication(t, c.pods[0].Etcd(), "root")
	last := c.pods[2]
	c.runs[2].LoseVolume()
	run := last.Start()
	run.AwaitLine(harness.Line{"message": "set ETCDCTL_USER=root and ETCDCTL_PASSWORD"})
	run.Kill()
	last.Env = append(last.Env, "ETCDCTL_USER=root", "ETCDCTL_PASSWORD=secret")
	run = last.StartReady()
	run.AwaitLine(harness.Line{"message": "this learner was promoted"})
	run.Shutdown()
}

func TestLostMember_isPromoted(t *testing.T) {
	onlyWithMembers(t)
	for name, start := range map[string]func(t *testing.T) *three{
		"root by certificate": func(t *testing.T) *three { // recovery needs no password, not even for the promotion
			c := startThree(t, harness.StandaloneMembers(t, 3, peerTLS, clientTLS))
			enableAuthentication(t, c.pods[0].Etcd(), "root", "client") // "client" is the name in the client certificate
			return c
		},
		"older data version": func(t *testing.T) *three { // all members run etcd 3.6 but report version 3.5
			return startThree(t, harness.StandaloneMembers(t, 3), "--etcd-data-version=3.5")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			c.runs[2].LoseVolume()
			run := c.pods[2].StartReady()
			run.AwaitLine(harness.Line{"message": "this learner was promoted"})
			run.Shutdown()
		})
	}
}

// The wrapper must detect that its data belongs to a removed member before it starts etcd, because etcd would exit at
// every start.
func TestRemovedMember_joinsAgain(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"down", "serving"} {
		t.Run(state, func(t *testing.T) {
			if state == "serving" {
				onlyWithMembers(t)
			}
			t.Parallel()
			c := newThree(t)
			last := c.pods[2]
			last.ExpectTerminationMessage()
			id := fmt.Sprint(c.runs[2].Status().MemberID)
			if state == "down" {
				c.runs[2].Kill()
			}
			harness.Eventually(t, "etcd accepts the removal", func() bool {
				_, _, code := c.pods[0].Begin("etcdctl", "member", "remove", id).Wait()
				return code == 0
			})
			if state == "serving" {
				require.Contains(t, []int{70, 2}, c.runs[2].Exit(harness.Patience))
				assert.Contains(t, terminationMessage(last), "do not start it again; to add it back")
			}
			run := last.StartReady()
			run.AwaitLine(harness.Line{"message": "which is no longer in the cluster", "level": "warn"})
			c.requireAllVoters()
			assert.Len(t, preserved(last), 1, "the old data is preserved")
		})
	}
}

// terminationMessage returns the termination message of a pod.
func terminationMessage(p *harness.Pod) string {
	p.T.Helper()
	text, err := os.ReadFile(p.TerminationMessage())
	require.NoError(p.T, err)
	return string(text)
}

// If a member is rolled back, etcd crashes because of a raft conflict. The termination message must explain this, and
// the next start must replace the member, even if a new leader has no record of the member's log position.
func TestMemberWithRaftConflict_isReplaced(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := newThree(t)
	last := c.pods[2]
	last.ExpectTerminationMessage()
	c.runs[2].Kill()
	dataLosses["rolled back"].inflict(c, last)

	run := last.Start("--recover=never")
	require.Equal(t, 2, run.Exit(harness.Patience))
	assert.Contains(t, terminationMessage(last), "tocommit")
	assert.Contains(t, terminationMessage(last), "--recover=auto")
	for _, other := range c.runs[:2] { // restart the leader, so that a new one is elected
		if status := other.Status(); status.Leader == status.MemberID {
			other.Shutdown()
			c.pods[slices.Index(c.runs, other)].StartReady()
			break
		}
	}
	run = last.StartReady()
	run.AwaitLine(harness.Line{"message": "etcd crashed with this data at the last start", "level": "warn"})
	c.requireAllVoters()
	assert.Len(t, preserved(last), 1)
}

// If two members have swapped volumes, both must wait: etcd would exit at every start, and the remaining members have
// no quorum.
func TestSwappedVolumes_bothMembersWait(t *testing.T) {
	t.Parallel()
	c := newThree(t)
	for _, run := range c.runs {
		run.Kill()
	}
	swap := func() {
		one, other, temporary := c.pods[1].Volume, c.pods[2].Volume, filepath.Join(c.pods[1].Dir, "swapped")
		for _, move := range [][2]string{{one, temporary}, {other, one}, {temporary, other}} {
			require.NoError(t, os.Rename(move[0], move[1]))
		}
	}
	swap()
	for i, p := range c.pods {
		c.runs[i] = p.Start()
	}
	for _, run := range c.runs[1:] {
		requireExplanation(t, run, "mount the right volume")
	}
	for _, run := range c.runs[1:] {
		status, _ := run.Stop(syscall.SIGTERM)
		require.Zero(t, status)
	}
	swap()
	for _, p := range c.pods[1:] {
		assert.Empty(t, preserved(p))
		p.Start()
	}
	c.runs[0].AwaitReady()
	c.requireAllVoters()
}

// If two of five members are lost at the same time, they must rejoin one after the other. A member that is rolled
// back afterwards must be replaced.
func TestLostMember_twoOfFive(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := startThree(t, harness.StandaloneMembers(t, 5))
	for _, i := range []int{2, 4} {
		c.runs[i].LoseVolume()
	}
	c.runs[2], c.runs[4] = c.pods[2].Start(), c.pods[4].Start()
	c.runs[2].AwaitReady()
	c.runs[4].AwaitReady()
	c.requireAllVoters()
	c.runs[3].Kill()
	dataLosses["rolled back"].inflict(c, c.pods[3])
	c.pods[3].StartReady()
	c.requireAllVoters()
	assert.Len(t, preserved(c.pods[3]), 1)
}
