package stories

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"etcd-wrapper/testdata/deploy/cluster"
)

// When a cluster grows to three members, its backups must move from the single member's volume to a bucket.
func TestOneMember_growsToThree(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(one)
	w.awaitReady(1)
	writes := w.startWriter()
	before := w.clusterID()
	w.apply(three)
	w.awaitReady(3)
	assert.Equal(t, before, w.clusterID(), "no other cluster was created")
	assert.ElementsMatch(t, []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}, w.voters())
	w.checkBackups("etcd-main-2", writes)
}

// New members must not create a second cluster if they cannot reach the first member.
func TestNewMembersWaitForTheFirst(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(one, "store: {url: s3://my-bucket/etcd-main}")
	w.awaitReady(1)
	w.greet()
	before, first := w.clusterID(), w.pods()["etcd-main-0"]
	w.awaitVerified("etcd-main-0")
	require.NoError(t, w.node.Cut(first))
	w.apply(three)
	for _, name := range []string{"etcd-main-1", "etcd-main-2"} {
		cluster.Eventually(t, name+" waits", func() error {
			out, _ := w.tryExec(name, "status") // the status command fails while the member is not ready
			return contains(out, "etcd-main-0 does not respond")
		})
	}
	require.NoError(t, w.node.Mend(first))
	w.awaitReady(3)
	assert.Equal(t, before, w.clusterID())
	assert.True(t, w.greeted())
	w.checkBackups("etcd-main-1", w.startWriter())
}

func TestLostVolume_memberRejoins(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	w.awaitRejoin("etcd-main-1", func() { w.recipe("docs/operations.md", "-n etcd delete pod etcd-main-1", nil) })
}

// A member must return after its machine and volume have been lost. The pod object remains until the node is deleted,
// because no kubelet reports that the pod has terminated. The test needs its own machines, because other tests are
// using the shared ones.
func TestLostNode_memberMoves(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	require.NoError(t, machines.Offer(t.Context(), w.namespace, 4, corev1.Taint{Key: "kind", Value: w.namespace, Effect: corev1.TaintEffectNoSchedule}))
	w.apply(three, fmt.Sprintf("nodeSelector: {kind: %[1]s}\ntolerations: [{key: kind, value: %[1]s}]", w.namespace))
	w.awaitReady(3)
	lost := w.pods()["etcd-main-1"]
	w.awaitRejoin("etcd-main-1", func() {
		require.NoError(t, w.node.Lose(t.Context(), lost.Spec.NodeName))
		w.recipe("docs/operations.md", "delete node NODE", nil, "NODE", lost.Spec.NodeName)
	})
	again := w.pods()["etcd-main-1"]
	assert.NotEqual(t, lost.UID, again.UID)
	assert.NotEqual(t, lost.Spec.NodeName, again.Spec.NodeName)
}

func TestLostVolume_TLS(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.withCertificates()
	w.apply(three, tlsSecrets)
	w.awaitReady(3)
	w.awaitRejoin("etcd-main-0", func() { w.loseVolume("etcd-main-0") })
}

// awaitRejoin calls lose, which must delete the pod and the volume of a member, while clients are writing. awaitRejoin
// then waits until the member's replacement is a voter, and checks the data and the backups.
func (w *environment) awaitRejoin(member string, lose func()) {
	w.t.Helper()
	writes := w.startWriter()
	before, gone := w.clusterID(), w.pods()[member].UID
	lose()
	w.awaitAnother(member, gone)
	w.awaitReady(3)
	assert.Equal(w.t, before, w.clusterID())
	assert.Len(w.t, w.voters(), 3)
	w.checkBackups(member, writes)
}

// A cluster that loses all three volumes must be restored using the chart's settings for the bucket, the keys and the
// volumes.
func TestLostVolumes_clusterIsRestored(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	writes := w.startWriter()
	w.checkBackups("etcd-main-0", writes)
	before := w.clusterID()
	w.loseAll()
	assert.NotEqual(t, before, w.clusterID(), "the restored cluster has a new ID, so that members of the old cluster cannot connect to it")
	assert.ElementsMatch(t, []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}, w.voters())
	further := w.startWriter()
	w.checkBackups("etcd-main-2", further)
	w.check(writes)
}

// loseAll deletes the volumes of all three members and waits until the members are ready again.
func (w *environment) loseAll() {
	w.t.Helper()
	names := []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}
	for _, name := range names {
		pod := w.pods()[name]
		require.NoError(w.t, w.node.Cut(pod), "a member must not copy data from a member that loses its volume later")
		require.NoError(w.t, w.node.Kill(pod, "etcd"), "members must be killed before they can stop cleanly")
	}
	for _, name := range names {
		w.loseVolume(name)
	}
	w.awaitReady(3)
}

// The test restores all members as described in docs/operations.md. A rolling update would never finish, because the
// first member becomes ready only together with the others.
func TestThreeMembers_restoreToATime(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	before := w.mistake()
	w.recipe("docs/operations.md", "--set hibernated=true", valuesFile(three))
	assert.Empty(t, w.pods())
	w.apply(three, before)
	w.awaitReady(3)
	assert.True(t, w.greeted(), "the key has its earlier value")
	assert.Len(t, w.voters(), 3)
	w.checkBackups("etcd-main-0", w.startWriter())
}

func TestOneMember_restoreToATime(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	before := w.mistake()
	w.apply(one, before)
	w.awaitReady(1)
	assert.True(t, w.greeted(), "the key has its earlier value")
	w.checkBackups("etcd-main-0", w.startWriter())
}

// mistake overwrites the key "greeting", waits until both values have been backed up, and returns the chart values that
// restore the first one.
func (w *environment) mistake() (values string) {
	w.t.Helper()
	w.greet()
	good := w.get("greeting").Kvs[0].ModRevision
	client := w.etcd()
	cluster.Eventually(w.t, "the key is overwritten", func() error { return tryPut(client, "greeting", "oops", 10*time.Second) })
	cluster.Eventually(w.t, "the wrong value is backed up", func() error { return w.backedUpTo("etcd-main-0", good+1) })
	return fmt.Sprintf("restore: {to: 'revision:%d', id: before-the-mistake}", good)
}

// Changing only replicas must not restart the remaining members.
func TestReplicas_changeDuringWrites(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	const values = three + "\nspread: {nodes: preferred}" // there are fewer machines than members
	members := func(count int) {
		if count == 5 {
			w.recipe("docs/operations.md", "--set replicas=5", valuesFile(values))
		} else {
			w.apply(values, fmt.Sprintf("replicas: %d", count))
		}
	}
	members(3)
	w.awaitReady(3)
	before, first, writes := w.clusterID(), w.pods()["etcd-main-0"].UID, w.startWriter()
	for _, count := range []int{5, 3, 1, 3} {
		members(count)
		cluster.Eventually(t, fmt.Sprintf("there are %d pods", count), func() error {
			if len(w.pods()) != count {
				return errNotYet
			}
			return nil
		})
		w.awaitReady(count)
		var names []string
		for i := range count {
			names = append(names, fmt.Sprintf("etcd-main-%d", i))
		}
		assert.ElementsMatch(t, names, w.voters())
		assert.Equal(t, first, w.pods()["etcd-main-0"].UID, "etcd-main-0 must not be restarted")
	}
	assert.Equal(t, before, w.clusterID())
	w.checkBackups("etcd-main-0", writes)
}

func (w *environment) clusterID() uint64 {
	w.t.Helper()
	return w.get("greeting").Header.ClusterId
}

// loseVolume deletes a pod and its claim, as an administrator would after permanently losing a node.
func (w *environment) loseVolume(name string) {
	w.t.Helper()
	gone := w.pods()[name].UID
	claims := w.Client.CoreV1().PersistentVolumeClaims(w.namespace)
	require.NoError(w.t, claims.Delete(w.t.Context(), "etcd-main-"+name, metav1.DeleteOptions{}))
	require.NoError(w.t, w.Client.CoreV1().Pods(w.namespace).Delete(w.t.Context(), name, metav1.DeleteOptions{}))
	w.awaitAnother(name, gone)
}

func (w *environment) awaitAnother(name string, gone types.UID) {
	w.t.Helper()
	cluster.Eventually(w.t, "there is a new pod", func() error {
		if pod := w.pods()[name]; pod == nil || pod.UID == gone {
			return errNotYet
		}
		return nil
	})
}
