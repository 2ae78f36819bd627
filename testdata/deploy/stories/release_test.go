package stories

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// `helm rollback` must revert a broken upgrade completely.
func TestStuckUpgrade_isRolledBack(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	w.apply(three, "quota: 4Gi")
	w.awaitReady(3)
	before := w.pods()
	writes := w.startWriter()
	w.apply(three, "etcdConfig: {quota-backend-bytes: much}")
	cluster.Eventually(t, "the last member does not start", func() error {
		pod := w.pods()["etcd-main-2"]
		if pod == nil || pod.UID == before["etcd-main-2"].UID || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil {
			return errNotYet
		}
		return nil
	})
	out, err := w.Helm("rollback", w.release, "-n", w.namespace)
	require.NoError(t, err, out)
	w.awaitReady(3)
	for _, name := range []string{"etcd-main-0", "etcd-main-1"} {
		assert.Equal(t, before[name].UID, w.pods()[name].UID, "%s was restarted", name)
	}
	w.checkBackups("etcd-main-2", writes)
	maps, err := w.Client.CoreV1().ConfigMaps(w.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=etcd-main"})
	require.NoError(t, err)
	assert.Len(t, maps.Items, 1, "the ConfigMaps of previous configurations are deleted")
}

// Members of a cluster that was created before the chart existed must stay in their cluster when the chart changes the
// cluster token and the peer URLs.
func TestMemberNames_shortToLong(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three, `etcdConfig:
  initial-cluster-token: etcd-main
  initial-cluster: etcd-main-0=http://etcd-main-0.etcd-main-peer:2380,etcd-main-1=http://etcd-main-1.etcd-main-peer:2380,etcd-main-2=http://etcd-main-2.etcd-main-peer:2380
  initial-advertise-peer-urls:
    etcd-main-0: ["http://etcd-main-0.etcd-main-peer:2380"]
    etcd-main-1: ["http://etcd-main-1.etcd-main-peer:2380"]
    etcd-main-2: ["http://etcd-main-2.etcd-main-peer:2380"]
`)
	w.awaitReady(3)
	before, writes := w.clusterID(), w.startWriter()
	w.apply(three)
	w.awaitReady(3)
	assert.Equal(t, before, w.clusterID())
	assert.Len(t, w.voters(), 3)
	w.checkBackups("etcd-main-1", writes)
	w.awaitRejoin("etcd-main-1", func() { w.loseVolume("etcd-main-1") })
}

func TestHibernation(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	w.greet()
	before := w.clusterID()
	w.apply(three, "hibernated: true")
	cluster.Eventually(t, "all pods are deleted", func() error {
		if len(w.pods()) > 0 {
			return errNotYet
		}
		return nil
	})
	w.apply(three)
	w.awaitReady(3)
	assert.True(t, w.greeted())
	assert.Equal(t, before, w.clusterID())
}

// A StatefulSet's volume size is immutable, so the test recreates the StatefulSet while its pods keep running.
func TestVolumeSize_changesWithoutRestart(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	before := w.pods()["etcd-main-0"].UID
	out, err := w.upgrade("volume: {size: 64Gi}")
	require.Error(t, err)
	require.Contains(t, out, "updates to statefulset spec for fields other than")
	w.recipe("docs/operations.md", "patch pvc", valuesFile("volume: {size: 64Gi}"))
	claim, err := w.Client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), "etcd-main-etcd-main-0", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "64Gi", claim.Spec.Resources.Requests.Storage().String())
	w.awaitReady(1)
	assert.Equal(t, before, w.pods()["etcd-main-0"].UID)
	assert.Zero(t, w.restarts("etcd-main-0"))
}

// Uninstalling a release must keep its volumes and Secrets, and a new release with the same name must reuse them.
func TestUninstall_keepsDataAndBackups(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	w.greet()
	out, err := w.Helm("uninstall", w.release, "-n", w.namespace)
	require.NoError(t, err, out)
	claims, err := w.Client.CoreV1().PersistentVolumeClaims(w.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, claims.Items, 2)
	cluster.Eventually(t, "the pod is deleted", func() error {
		if len(w.pods()) > 0 {
			return errNotYet
		}
		return nil
	})
	w.apply(one)
	w.awaitReady(1)
	assert.True(t, w.greeted())
}
