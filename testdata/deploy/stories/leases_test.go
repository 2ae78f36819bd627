package stories

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

const leasing = "leases: true\n"

// lease waits until a Lease satisfies a condition, and returns the Lease.
func (w *environment) lease(name string, accept func(*coordinationv1.Lease) bool) (found *coordinationv1.Lease) {
	w.t.Helper()
	cluster.Eventually(w.t, "the lease "+name+" is renewed", func() (err error) {
		found, err = w.Client.CoordinationV1().Leases(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{})
		if err == nil && (found.Spec.HolderIdentity == nil || found.Spec.RenewTime == nil || !accept(found)) {
			return fmt.Errorf("%s: %v: %w", name, found.Spec, errNotYet)
		}
		return err
	})
	return found
}

func renewed(*coordinationv1.Lease) bool { return true }

func revisionOf(t *testing.T, lease *coordinationv1.Lease) int {
	t.Helper()
	revision, err := strconv.Atoi(*lease.Spec.HolderIdentity)
	require.NoError(t, err)
	return revision
}

func TestLeases_memberAndBackups(t *testing.T) {
	w := newEnvironment(t)
	w.apply(one, leasing)
	w.awaitReady(1)
	first := w.lease("etcd-main-0", renewed)
	assert.Regexp(t, `^[0-9a-f]+:[0-9a-f]+:Leader$`, *first.Spec.HolderIdentity)
	assert.Equal(t, "false", first.Annotations["member.etcd.gardener.cloud/tls-enabled"])
	w.lease("etcd-main-0", func(l *coordinationv1.Lease) bool { return l.Spec.RenewTime.After(first.Spec.RenewTime.Time) })

	full := w.lease("etcd-main-full-snap", renewed)
	before := revisionOf(t, w.lease("etcd-main-delta-snap", renewed))
	assert.GreaterOrEqual(t, before, revisionOf(t, full))
	w.greet()
	w.lease("etcd-main-delta-snap", func(l *coordinationv1.Lease) bool { return revisionOf(t, l) > before })
	assert.Contains(t, w.exec("etcd-main-0", "status", "-v"), "etcd-main-delta-snap: ")

	w.apply(one, leasing)
	assert.Equal(t, full.Spec, w.lease("etcd-main-full-snap", renewed).Spec, "applying the chart again changes no lease")
	w.requirePermissions("get lease/etcd-main-0", "patch lease/etcd-main-0", "patch lease/etcd-main-full-snap")
}

// The test checks only the sidecar's permissions, because the scripted sidecar does not call the API server.
func TestSidecarRole_isMinimal(t *testing.T) {
	w := newNamespace(t)
	w.apply(threeWithSidecars)
	w.requirePermissions("get lease/etcd-main-2", "patch lease/etcd-main-2", "patch lease/etcd-main-delta-snap", "get statefulset/etcd-main")
}

// requirePermissions checks that the pods' service account has the given permissions and none of the others listed
// below.
func (w *environment) requirePermissions(allowed ...string) {
	w.t.Helper()
	answers := map[string]string{
		"update lease/etcd-main-0": "no", "delete lease/etcd-main-0": "no", "patch lease/another": "no", "list leases": "no",
		"create leases": "no", "get pods": "no", "get events.events.k8s.io": "no", "create pods": "no", "get secrets": "no", "patch statefulset/etcd-main": "no", "get statefulset/another": "no",
	}
	for _, question := range allowed {
		answers[question] = "yes"
	}
	for question, want := range answers {
		asked := append([]string{"auth", "can-i", "-n", w.namespace, "--as=system:serviceaccount:" + w.namespace + ":etcd-main"}, strings.Fields(question)...)
		out, _ := w.Kubectl(asked...) // kubectl exits with an error if the answer is "no"
		assert.Equal(w.t, want, strings.TrimSpace(out), question)
	}
}

func TestLeases_forbidden(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three, leasing)
	w.awaitReady(3)
	cluster.Eventually(t, "one member is the leader", func() error {
		leaders := 0
		for i := range 3 {
			if lease := w.lease(fmt.Sprintf("etcd-main-%d", i), renewed); strings.HasSuffix(*lease.Spec.HolderIdentity, ":Leader") {
				leaders++
			}
		}
		if leaders != 1 {
			return fmt.Errorf("%d leaders: %w", leaders, errNotYet)
		}
		return nil
	})

	out, err := w.Kubectl("delete", "-n", w.namespace, "rolebinding", "etcd-main")
	require.NoError(t, err, out)
	cluster.Eventually(t, "the status reports the missing permission", func() error {
		return contains(w.exec("etcd-main-1", "status", "-v"), "lease fails", "Role does not allow it to get and patch")
	})
	w.awaitReady(3)
	w.greet()
	w.apply(three, leasing)
	cluster.Eventually(t, "the lease is renewed again", func() error { return contains(w.log("etcd-main-1"), "renewed the lease after previous failures") })
}
