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
		t.Skip("takes long: run it with -downgrade")
	}
	t.Parallel()
}

// oldCluster returns a cluster of three etcd 3.5 members that communicate over TLS and contain some keys.
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
		holds(p, keys)
	}
	for _, p := range pods {
		awaitVersion(p, "3.5.0")
	}
	for i, p := range pods {
		runs[i].Shutdown()
		old[i] = beginOldEtcd(p, "3.5")
		putMany(p, keys, keys+10)
		keys += 10
		holds(p, keys)
	}
}

// In a mixed cluster, the sidecar must be able to replace a member that has lost its volume with a learner of the same
// name.
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
	holds(pods[2], 10)
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
	holds(pods[2], 10)
	harness.Eventually(t, "the member waits for the others", func() bool { return joined.Status().DataVersion.Phase == "waiting" })
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
		harness.Eventually(t, "the version is held", func() bool {
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
	holds(pods[2], 10)
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
		holds(p, 10)
	}
}

// The test restores a volume from a copy that was made before the cluster was upgraded. If the current leader has
// already recorded a higher log position for the member, the member's etcd exits, whatever its version. A leader
// elected afterwards sends the missing entries.
func TestDowngrade_volumeFromBeforeTheUpgrade(t *testing.T) {
	optIn(t)
	pods, runs := harness.Cluster(t, 3)
	putMany(pods[0], 0, 10)
	runs[2].Shutdown()
	backup := filepath.Join(pods[2].Dir, "backup")
	require.NoError(t, exec.Command("cp", "-a", pods[2].DataDir(), backup).Run())
	runs[0].Shutdown()
	runs[1].Kill() // the cluster loses its quorum
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

	first := pods[2].Start() // this member requires 3.5, and its data contains nothing specific to 3.6
	ended := false
	harness.Eventually(t, "the member is ready or has exited", func() bool {
		select {
		case <-first.Ended:
			ended = true
		default:
		}
		return ended || first.Readyz() == 200
	})
	t.Logf("the first start ended: %t", ended)
	if ended {
		pods[2].StartReady()
	}
	holds(pods[2], 20)
}

// rejoin removes a member and re-adds it as a learner.
func rejoin(t *testing.T, p, other *harness.Pod) {
	t.Helper()
	client := p.Etcd()
	members, err := client.MemberList(t.Context())
	require.NoError(t, err)
	for _, member := range members.Members {
		if member.Name == other.Config["name"] {
			eventually(t, "it is removed", func(ctx context.Context) error {
				_, err := client.MemberRemove(ctx, member.ID)
				return err
			})
		}
	}
	eventually(t, "it is added", func(ctx context.Context) error {
		_, err := client.MemberAddAsLearner(ctx, []string{other.PeerURL()})
		return err
	})
	other.Config["initial-cluster-state"] = "existing"
}

// promote promotes the learner once it has caught up.
func promote(t *testing.T, p *harness.Pod) {
	t.Helper()
	client := p.Etcd()
	eventually(t, "the learner has a vote", func(ctx context.Context) error {
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

// eventually retries a membership change that etcd rejects until all members have been connected for a few seconds.
func eventually(t *testing.T, what string, do func(ctx context.Context) error) {
	t.Helper()
	harness.Eventually(t, what, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := do(ctx)
		return err == nil || strings.Contains(err.Error(), "member not found")
	})
}
