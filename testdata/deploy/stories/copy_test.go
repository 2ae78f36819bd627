package stories

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// The test copies the store once with a Job and then on a schedule with a CronJob. The members must be able to
// continue with the copy when the original bucket is abandoned.
func TestBackupCopy_clusterContinuesInTheCopy(t *testing.T) {
	const nightly, each = `copy: {to: "s3://another-bucket/etcd-main", schedule: "0 3 * * *"}`, `copy: {to: "s3://another-bucket/etcd-main", schedule: "* * * * *"}`
	w := newEnvironmentWithBucket(t)
	w.apply(three, nightly)
	w.awaitReady(3)
	w.greet()
	w.awaitVerified("etcd-main-0")
	assert.Contains(t, w.recipe("docs/operations.md", "create job", valuesFile(three)), "verified")

	w.apply(three, each)
	cluster.Eventually(t, "the CronJob copies the store", func() error {
		jobs, err := w.Client.BatchV1().Jobs(w.namespace).List(t.Context(), metav1.ListOptions{})
		for _, job := range jobs.Items {
			if _, byHand := job.Annotations["cronjob.kubernetes.io/instantiate"]; job.Status.Succeeded == 1 && !byHand {
				return err
			}
		}
		return errors.Join(err, errNotYet)
	})
	before := w.clusterID()
	w.apply(three, `store: {url: "s3://another-bucket/etcd-main"}`)
	w.awaitReady(3)
	require.True(t, w.greeted())
	assert.Equal(t, before, w.clusterID())
	w.checkBackups("etcd-main-1", w.startWriter())
}
