package stories

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

// While a client writes, the test installs an earlier version's published chart, upgrades to the current chart with
// a new image tag, rolls back, and upgrades again.
func TestEarlierCharts_upgradeAndRollback(t *testing.T) {
	for _, chart := range cluster.Released() {
		t.Run(filepath.Base(chart), func(t *testing.T) {
			w := newEnvironmentWithBucket(t)
			out, err := w.Helm("install", w.release, chart, "-n", w.namespace, "--values="+w.file("former.yaml", three))
			require.NoError(t, err, out)
			w.awaitReady(3)
			before, writes := w.clusterID(), w.startWriter()
			w.apply(three, "image: {tag: v2}")
			w.awaitImage("etcd-wrapper:v2")
			out, err = w.Helm("rollback", w.release, "-n", w.namespace)
			require.NoError(t, err, out)
			w.awaitImage("etcd-wrapper")
			w.apply(three, "image: {tag: v2}")
			w.awaitImage("etcd-wrapper:v2")
			w.checkBackups("etcd-main-2", writes)
			assert.Equal(t, before, w.clusterID())
		})
	}
}

// awaitImage waits until three members with the given image are ready.
func (w *environment) awaitImage(image string) {
	w.t.Helper()
	w.awaitReady(3)
	for name, pod := range w.pods() {
		assert.Equal(w.t, image, pod.Spec.Containers[0].Image, name)
	}
}

// The test creates the objects with kubectl apply and then lets Helm adopt them with the command from
// docs/upgrade.md.
func TestAppliedManifests_areAdoptedByHelm(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.strictly(three)
	w.awaitReady(3)
	before, writes := w.clusterID(), w.startWriter()
	const configured = three + "\netcdConfig: {snapshot-count: 12345}"
	w.recipe("docs/upgrade.md", "--take-ownership", valuesFile(configured))
	w.awaitReady(3)
	assert.Contains(t, w.log("etcd-main-0"), `"snapshot-count":12345`)
	assert.Equal(t, before, w.clusterID())
	w.apply(configured)
	w.checkBackups("etcd-main-0", writes)
}

// The test corrects a Secret and then deletes the pods that are still waiting, because a running process does not
// see changes to its environment.
func TestWrongSecret_isCorrected(t *testing.T) {
	w := newEnvironment(t)
	w.offerBucket()
	w.secret("etcd-main-backup-credentials", map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": "mistaken", "AWS_ENDPOINT_URL": credentials["AWS_ENDPOINT_URL"]})
	w.apply(three)
	cluster.Eventually(t, "the status names the wrong credentials", func() error {
		out, _ := w.tryExec("etcd-main-0", "status") // the status command fails while the member is not ready
		return contains(out, "SignatureDoesNotMatch")
	})
	w.renew("etcd-main-backup-credentials", credentials)
	w.recipe("docs/operations.md", "-n etcd delete pod -l", valuesFile(three))
	w.awaitReady(3)
	w.checkBackups("etcd-main-0", w.startWriter())
}
