package stories

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

func TestOneMember(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	w.greet()
	assert.True(t, w.greeted())
	assert.Contains(t, w.exec("etcd-main-0", "status"), "etcd-main-0: Serving, ready")

	w.exec("etcd-main-0", "backup", "now")
	w.exec("etcd-main-0", "backup", "verify")
	listed := w.exec("etcd-main-0", "backup", "list")
	t.Log(listed)
	backups, err := os.ReadDir(w.node.Disk(t, w.pods()["etcd-main-0"], "etcd-main-backups"))
	require.NoError(t, err)
	assert.NotEmpty(t, backups, "the backups must be on their own volume")
	snapshot := "/var/etcd/backups/before"
	w.exec("etcd-main-0", "backup", "export", snapshot)
	assert.Contains(t, w.exec("etcd-main-0", "etcdutl", "snapshot", "status", snapshot), ",")
}

func TestThreeMembers_bucket(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three)
	w.awaitReady(3)
	writes := w.startWriter()
	assert.ElementsMatch(t, []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}, w.voters())
	nodes := map[string]bool{}
	for name, pod := range w.pods() {
		nodes[pod.Spec.NodeName] = true
		assert.Contains(t, w.exec(name, "status"), name+": Serving, ready")
	}
	assert.Len(t, nodes, 3, "each member must run on a different node")
	w.checkBackups("etcd-main-0", writes)
	result := w.exec("etcd-main-1", "backup", "verify")
	assert.Contains(t, result, "restored revision", "any member can test a backup")
}

// The test corrects a wrong bucket name as described in the README. Correcting the values is not enough: the rolling
// update would wait forever for the first pod, because members without data become ready only together.
func TestWrongBucketName_isCorrected(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three, "store: {url: s3://mistaken-bucket/etcd-main}")
	cluster.Eventually(t, "the status names the wrong bucket", func() error {
		out, _ := w.tryExec("etcd-main-0", "status") // the status command fails while the member is not ready
		return contains(out, "mistaken-bucket", "bucket not found")
	})
	w.apply(three)
	out, err := w.Kubectl("delete", "pod", "-n", w.namespace, "-l", "app.kubernetes.io/component=etcd-statefulset", "--wait=false")
	require.NoError(t, err, out)
	w.awaitReady(3)
	w.checkBackups("etcd-main-0", w.startWriter())
}
