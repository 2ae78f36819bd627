package stories

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

func TestEvents_inKubectlDescribe(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one)
	w.awaitReady(1)
	w.greet()
	w.exec("etcd-main-0", "defrag")
	cluster.Eventually(t, "kubectl describe shows the Event", func() error {
		out, err := w.Kubectl("-n", w.namespace, "describe", "pod", "etcd-main-0")
		if err != nil {
			return err
		}
		_, events, _ := strings.Cut(out, "\nEvents:")
		return contains(events, "Defragmented", "etcd-wrapper", "defragmented by command in")
	})
	w.requirePermissions("create events.events.k8s.io")

	out, err := w.Kubectl("delete", "-n", w.namespace, "rolebinding", "etcd-main")
	require.NoError(t, err, out)
	w.Kubectl("-n", w.namespace, "delete", "pod", "etcd-main-0", "--wait=false") //nolint:errcheck // awaitReady waits for the new pod
	w.awaitReady(1)
	cluster.Eventually(t, "the member is defragmented again", func() error {
		_, err := w.tryExec("etcd-main-0", "defrag")
		return err
	})
	cluster.Eventually(t, "the log reports the missing permission", func() error {
		return contains(w.log("etcd-main-0"), "Role does not allow it to create this Event")
	})
	assert.True(t, w.greeted())
}
