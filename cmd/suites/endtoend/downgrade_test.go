package endtoend_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

func optIn(t *testing.T) {
	t.Helper()
	if !*downgrade {
		t.Skip("skipped: slow; enable it with -downgrade")
	}
	t.Parallel()
}

// oldCluster starts a cluster of three etcd 3.5 members, whose peer connections use TLS, and writes the given number
// of keys.
func oldCluster(t *testing.T, keys int) (pods []*harness.Pod, old []*harness.Command) {
	t.Helper()
	pods = harness.Members(t, 3, peerTLS)
	for _, p := range pods {
		old = append(old, beginOldEtcd(p, "3.5"))
	}
	putMany(pods[0], 0, keys)
	return pods, old
}

func TestDowngrade_rollingAndBack(t *testing.T) {
	optIn(t)
	pods, old := oldCluster(t, 10)
	keys := 10
	var runs []*harness.Run
	for i, p := range pods {
		old[i].Stop()
		runs = append(runs, p.StartReady())
		putMany(p, keys, keys+10)
		keys += 10
		requireKeys(p, keys)
	}
	for _, p := range pods {
		awaitVersion(p, "3.5.0")
	}
	for i, p := range pods {
		runs[i].Shutdown()
		old[i] = beginOldEtcd(p, "3.5")
		putMany(p, keys, keys+10)
		keys += 10
		requireKeys(p, keys)
	}
}

// In a cluster with both etcd versions, it must be possible to replace a member that has lost its volume with a
// learner of the same name, as the sidecar does.
func TestDowngrade_mixedClusterReplacesLostVolume(t *testing.T) {
	optIn(t)
	pods, old := oldCluster(t, 10)
	old[2].Stop()
	lost := pods[2].StartReady()
	lost.Kill()
	require.NoError(t, os.RemoveAll(pods[2].DataDir()))
	rejoin(t, pods[0], pods[2])
	run := pods[2].Start()
	promote(t, pods[0])
	run.AwaitReady()
	requireKeys(pods[2], 10)
	awaitVersion(pods[2], "3.5.0")
	run.Shutdown()
}

func TestDowngrade_memberThatWants3_6(t *testing.T) {
	optIn(t)
	pods := harness.Members(t, 3, peerTLS)
	runs := harness.StartAll(pods)
	putMany(pods[0], 0, 10)
	runs[2].Kill()
	require.NoError(t, os.RemoveAll(pods[2].DataDir()))
	rejoin(t, pods[0], pods[2])
	joined := pods[2].Start("--etcd-data-version=3.6")
	promote(t, pods[0])
	joined.AwaitReady()
	requireKeys(pods[2], 10)
	harness.Eventually(t, "the member waits until the other members can use data version 3.6", func() bool { return joined.Status().DataVersion.Phase == "waiting" })
	for _, p := range pods {
		awaitVersion(p, "3.5.0")
	}
	joined.Shutdown()
	readable := pods[2].StartReady() // with the same flags as the other members
	harness.Eventually(t, "the data version is kept", func() bool { return readable.Status().DataVersion.Phase == "kept" })
}

// The downgrade must be canceled when a member loses its volume, because etcd rejects members without data during a
// downgrade.
func TestDowngrade_canceledForLostVolume(t *testing.T) {
	optIn(t)
	pods := harness.Members(t, 3, peerTLS)
	runs := harness.StartAll(pods, "--etcd-data-version=3.6")
	for _, p := range pods {
		awaitVersion(p, "3.6.0")
	}
	putMany(pods[0], 0, 10)
	for _, run := range runs {
		run.Kill()
	}
	runs = harness.StartAll(pods)
	for _, run := range runs {
		harness.Eventually(t, "the data version is held at 3.5", func() bool {
			about := run.Status().DataVersion
			return about != nil && about.Readable && about.Phase == "holding"
		})
	}
	runs[2].Kill()
	require.NoError(t, os.RemoveAll(pods[2].DataDir()))
	rejoin(t, pods[0], pods[2])
	joined := pods[2].Start()
	promote(t, pods[0])
	joined.AwaitReady()
	requireKeys(pods[2], 10)
	for _, p := range pods {
		awaitVersion(p, "3.5.0")
	}
	require.NotEmpty(t, slices.Concat(runs[0].Log.Matching(harness.Line{"phase": "letting go"}), runs[1].Log.Matching(harness.Line{"phase": "letting go"})))
	for _, run := range []*harness.Run{joined, runs[1], runs[0]} {
		run.Kill()
	}
	for _, p := range pods {
		beginOldEtcd(p, "3.5")
	}
	for _, p := range pods {
		requireKeys(p, 10)
	}
}

// A member must be able to continue with a copy of its volume from before an upgrade of the cluster. Its first start
// may fail: every etcd version exits if the leader has already recorded a higher log position for the member. A leader
// that is elected afterwards sends the missing entries.
func TestDowngrade_volumeFromBeforeTheUpgrade(t *testing.T) {
	optIn(t)
	pods, runs := harness.Cluster(t, 3)
	putMany(pods[0], 0, 10)
	runs[2].Shutdown()
	backup := filepath.Join(pods[2].Dir, "backup")
	require.NoError(t, exec.Command("cp", "-a", pods[2].DataDir(), backup).Run())
	runs[0].Shutdown()
	runs[1].Kill() // a graceful stop is impossible without a quorum
	runs = harness.StartAll(pods, "--etcd-data-version=3.6")
	for _, p := range pods {
		awaitVersion(p, "3.6.0")
	}
	putMany(pods[0], 10, 20)
	for _, i := range []int{2, 1, 0} {
		runs[i].Kill()
	}
	require.NoError(t, os.RemoveAll(pods[2].DataDir()))
	require.NoError(t, os.Rename(backup, pods[2].DataDir()))
	harness.StartAll(pods[:2], "--etcd-data-version=3.6")

	first := pods[2].Start() // with the default data version 3.5, which its data still has
	exited := false
	harness.Eventually(t, "the member is ready or has exited", func() bool {
		select {
		case <-first.Ended:
			exited = true
		default:
		}
		return exited || first.Readyz() == 200
	})
	t.Logf("the first start exited: %t", exited)
	if exited {
		pods[2].StartReady()
	}
	requireKeys(pods[2], 20)
}

// rejoin removes the member with other's name from p's cluster and adds it again as a learner.
func rejoin(t *testing.T, p, other *harness.Pod) {
	t.Helper()
	client := p.Etcd()
	members, err := client.MemberList(t.Context())
	require.NoError(t, err)
	for _, member := range members.Members {
		if member.Name == other.Config["name"] {
			eventually(t, "the member is removed", func(ctx context.Context) error {
				_, err := client.MemberRemove(ctx, member.ID)
				return err
			})
		}
	}
	eventually(t, "the learner is added", func(ctx context.Context) error {
		_, err := client.MemberAddAsLearner(ctx, []string{other.PeerURL()})
		return err
	})
	other.Config["initial-cluster-state"] = "existing"
}

// promote promotes the learner in the pod's cluster. etcd accepts this once the learner has caught up.
func promote(t *testing.T, p *harness.Pod) {
	t.Helper()
	client := p.Etcd()
	eventually(t, "the learner is promoted", func(ctx context.Context) error {
		members, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		return promoteIn(ctx, client, members.Members)
	})
}

func promoteIn(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
	for _, member := range members {
		if member.IsLearner {
			_, err := client.MemberPromote(ctx, member.ID)
			return err
		}
	}
	return nil
}

// eventually retries a membership change, because etcd rejects it until all members have been connected for a few
// seconds. A change also counts as successful if its member no longer exists.
func eventually(t *testing.T, what string, do func(ctx context.Context) error) {
	t.Helper()
	harness.Eventually(t, what, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := do(ctx)
		return err == nil || strings.Contains(err.Error(), "member not found")
	})
}
