package stories

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

var variants = []string{"standalone", "standalone-ha", "sidecar", "sidecar-ha"}

// restricted makes a namespace that takes no pod but what the strictest of the Pod Security Standards allows.
func restricted(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	_, err := c.Client.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest",
			"pod-security.kubernetes.io/warn": "restricted",
		},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// apply is what the README tells users to do, and does not let an unknown field pass.
func apply(c *cluster.Cluster, namespace, folder string) (string, error) {
	return c.Kubectl("apply", "--server-side", "--validate=strict", "-n", namespace, "-k", folder)
}

func TestEveryVariantIsTakenByAStrictServerInARestrictedNamespace(t *testing.T) {
	c := cluster.Start(t)
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			restricted(t, c, variant)
			out, err := apply(c, variant, "deploy/"+variant)
			require.NoError(t, err, out)
			assert.NotContains(t, out, "Warning", "neither unknown fields nor violations of the pod standard")
			cluster.Eventually(t, "the pods are admitted", func() error {
				return havePods(c, variant)
			})
			again, err := apply(c, variant, "deploy/"+variant)
			require.NoError(t, err, again)
		})
	}
}

func TestOneVariantBecomesAnotherByApplyingIt(t *testing.T) {
	c := cluster.Start(t)
	restricted(t, c, "moves")
	for _, variant := range []string{"standalone", "sidecar", "standalone", "standalone-ha", "sidecar-ha", "standalone-ha"} {
		out, err := apply(c, "moves", "deploy/"+variant)
		require.NoError(t, err, "%s: %s", variant, out)
		set, err := c.Client.AppsV1().StatefulSets("moves").Get(t.Context(), "etcd-main", metav1.GetOptions{})
		require.NoError(t, err)
		out, err = c.Kubectl("diff", "--server-side", "-n", "moves", "-k", "deploy/"+variant)
		assert.NoError(t, err, "%s has left something behind:\n%s", variant, out)
		assert.Equal(t, map[string]int{"standalone": 1, "sidecar": 2, "standalone-ha": 1, "sidecar-ha": 2}[variant],
			len(set.Spec.Template.Spec.Containers), variant)
	}
}

// definitions teaches the server the kinds of cert-manager and of the Prometheus operator.
func definitions(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for module, folder := range map[string]string{
		"github.com/cert-manager/cert-manager":               "deploy/crds",
		"github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd",
	} {
		list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
		list.Dir = filepath.Join(cluster.Checkout(), "testdata/crds")
		dir, err := list.Output()
		require.NoError(t, err)
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), folder, "*_*.yaml"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			out, err := c.Kubectl("apply", "--server-side", "-f", file)
			require.NoError(t, err, out)
		}
	}
	out, err := c.Kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	require.NoError(t, err, out)
}

func TestComponentsAreTakenByAStrictServer(t *testing.T) {
	c := cluster.Start(t)
	definitions(t, c)
	for variant, components := range map[string][]string{
		"standalone": {"tls-one", "cert-manager", "monitoring"}, "standalone-ha": {"tls-three", "cert-manager", "monitoring"},
		"sidecar": {"monitoring"}, "sidecar-ha": {"monitoring", "network-policy"},
	} {
		t.Run(variant, func(t *testing.T) {
			restricted(t, c, variant)
			w := &world{Cluster: c, t: t}
			changes := "components:\n"
			for _, component := range components {
				changes += "- ../../deploy/components/" + component + "\n"
			}
			out, err := apply(c, variant, w.overlay(variant, changes))
			require.NoError(t, err, out)
			assert.NotContains(t, out, "Warning")
			cluster.Eventually(t, "the pods are admitted", func() error { return havePods(c, variant) })
		})
	}
}
