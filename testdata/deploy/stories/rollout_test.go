package stories

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// After a configuration change, the pods must restart one at a time in reverse order, each only when the previous one
// is ready.
func TestConfigurationChange_duringWrites(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	before := w.pods()
	writes := w.startWriter()
	w.apply(three, "etcdConfig: {snapshot-count: 12345}")
	w.awaitReady(3)
	w.checkBackups("etcd-main-0", writes)
	after := w.pods()
	for name := range before {
		require.NotEqual(t, before[name].UID, after[name].UID, "%s must be a new pod", name)
		require.Zero(t, after[name].Status.ContainerStatuses[0].RestartCount)
		require.NoError(t, contains(w.log(name), `"snapshot-count":12345`, "sanity validation"), name)
	}
	first, last := after["etcd-main-2"].CreationTimestamp, after["etcd-main-0"].CreationTimestamp
	require.True(t, first.Before(&last), "the member with the highest number must be restarted first")
}

// Until it is reverted, an invalid configuration must stop only one member, while the others keep serving.
func TestStuckRollout_isReverted(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	before := w.pods()
	writes := w.startWriter()
	w.apply(three, "etcdConfig: {quota-backend-bytes: much}")
	cluster.Eventually(t, "the last member does not start", func() error {
		pod := w.pods()["etcd-main-2"]
		if pod == nil || pod.UID == before["etcd-main-2"].UID || len(pod.Status.ContainerStatuses) == 0 {
			return errNotYet
		}
		ended := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated
		if ended == nil {
			return errNotYet
		}
		require.EqualValues(t, 78, ended.ExitCode)
		return nil
	})
	w.apply(three)
	w.awaitReady(3)
	w.checkBackups("etcd-main-2", writes)
	for _, name := range []string{"etcd-main-0", "etcd-main-1"} {
		require.Equal(t, before[name].UID, w.pods()[name].UID, "%s was restarted", name)
	}
}

// log returns a member's log, including the logs of earlier pods with the same name.
func (w *environment) log(member string) string { return w.logOf(member, "etcd") }

func (w *environment) logOf(member, container string) string {
	w.t.Helper()
	content, err := os.ReadFile(w.node.LogFile(w.namespace, member, container))
	require.NoError(w.t, err)
	return string(content)
}

// The PodDisruptionBudget must allow the eviction of only one member at a time.
func TestEviction_oneOfThree(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	cluster.Eventually(t, "the PodDisruptionBudget allows one eviction", func() error { return w.allowed(1) })
	writes := w.startWriter()
	gone := w.pods()["etcd-main-1"].UID
	require.NoError(t, w.evict("etcd-main-1"))
	err := w.evict("etcd-main-2")
	require.ErrorContains(t, err, "disruption budget", "the second eviction is rejected")
	cluster.Eventually(t, "the first member is ready again", func() error {
		if pod := w.pods()["etcd-main-1"]; pod == nil || pod.UID == gone {
			return errNotYet
		}
		return w.allowed(1)
	})
	w.awaitReady(3)
	require.NoError(t, w.evict("etcd-main-2"))
	cluster.Eventually(t, "all members are ready again", func() error { return w.allowed(1) })
	w.awaitReady(3)
	w.checkBackups("etcd-main-2", writes)
}

func TestEviction_singleMember(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	w.greet()
	gone := w.pods()["etcd-main-0"].UID
	cluster.Eventually(t, "the eviction is allowed", func() error { return w.evict("etcd-main-0") })
	cluster.Eventually(t, "the member is ready again", func() error {
		if pod := w.pods()["etcd-main-0"]; pod == nil || pod.UID == gone {
			return errNotYet
		}
		return nil
	})
	w.awaitReady(1)
	require.True(t, w.greeted())
	require.NoError(t, contains(w.log("etcd-main-0"), "sanity validation"))
}

// After a container has been killed, for example by the OOM killer, the next start must run a full validation, because
// there is no clean exit record.
func TestKilledContainer_validatesInFull(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	w.greet()
	require.NoError(t, w.node.Kill(w.pods()["etcd-main-0"], "etcd"))
	cluster.Eventually(t, "the container is restarted", func() error {
		status := w.pods()["etcd-main-0"].Status.ContainerStatuses[0]
		if status.RestartCount != 1 || !status.Ready {
			return errNotYet
		}
		require.EqualValues(t, 137, status.LastTerminationState.Terminated.ExitCode)
		return nil
	})
	require.True(t, w.greeted())
	require.NoError(t, contains(w.log("etcd-main-0"), "full validation"))
}

// kubectl describe must show users why a container terminated.
func TestRefusal_inKubectlDescribe(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one, `etcdConfig:
  advertise-client-urls: {etcd-other-0: ["http://a:2379"]}
  initial-advertise-peer-urls: {etcd-other-0: ["http://a:2380"]}
`)
	cluster.Eventually(t, "the container's termination message contains the reason", func() error {
		pod := w.pods()["etcd-main-0"]
		if pod == nil || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil {
			return errNotYet
		}
		ended := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated
		require.EqualValues(t, 78, ended.ExitCode)
		return contains(ended.Message, `has no URLs for this member, "etcd-main-0"`)
	})
}

func (w *environment) allowed(want int32) error {
	budget, err := w.Client.PolicyV1().PodDisruptionBudgets(w.namespace).Get(w.t.Context(), "etcd-main", metav1.GetOptions{})
	if err == nil && budget.Status.DisruptionsAllowed != want {
		err = errNotYet
	}
	return err
}
