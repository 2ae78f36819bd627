package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

var variants = []string{"standalone", "standalone-ha", "sidecar", "sidecar-ha"}

func TestEveryVariantIsTakenByAStrictServerInARestrictedNamespace(t *testing.T) {
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			w := newNamespace(t)
			w.apply("deploy/" + variant)
			w.awaitPods()
			w.apply("deploy/" + variant)
		})
	}
}

func TestOneVariantBecomesAnotherByApplyingIt(t *testing.T) {
	w := newNamespace(t)
	for _, variant := range []string{"standalone", "sidecar", "standalone", "standalone-ha", "sidecar-ha", "standalone-ha"} {
		w.apply("deploy/" + variant)
		set, err := w.Client.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "etcd-main", metav1.GetOptions{})
		require.NoError(t, err)
		out, err := w.Kubectl("diff", "--server-side", "-n", w.namespace, "-k", "deploy/"+variant)
		assert.NoError(t, err, "%s has left something behind:\n%s", variant, out)
		assert.Equal(t, map[string]int{"standalone": 1, "sidecar": 2, "standalone-ha": 1, "sidecar-ha": 2}[variant],
			len(set.Spec.Template.Spec.Containers), variant)
	}
}

// definitions teaches the server the kinds of cert-manager and of the Prometheus operator.
func definitions(t *testing.T) {
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
			out, err := shared.Kubectl("apply", "--server-side", "-f", file)
			require.NoError(t, err, out)
		}
	}
	out, err := shared.Kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	require.NoError(t, err, out)
}

func TestComponentsAreTakenByAStrictServer(t *testing.T) {
	definitions(t)
	for name, test := range map[string]struct{ variant, components string }{
		"one":                  {"standalone", "tls-one, cert-manager, leases-one, monitoring"},
		"three":                {"standalone-ha", "tls-three, cert-manager, leases-three, monitoring, monitoring-tls, network-policy"},
		"one with a sidecar":   {"sidecar", "tls-one, tls-sidecar, cert-manager, monitoring"},
		"three with sidecars":  {"sidecar-ha", "tls-three, tls-sidecar, cert-manager, monitoring, network-policy"},
		"sidecars without TLS": {"sidecar-ha", "monitoring, network-policy"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newNamespace(t)
			w.apply(w.overlay(test.variant, components(test.components)))
			w.awaitPods()
		})
	}
}

// written finds what people are to write into a kustomization of their own.
var written = regexp.MustCompile(`(?m)^ +(?:patches|configMapGenerator|components):.*\n(?: +.*\n)*`)

func TestWhatTheGuidesHavePeopleWriteIsTaken(t *testing.T) {
	definitions(t)
	w := newNamespace(t)
	config, err := os.ReadFile(filepath.Join(cluster.Checkout(), "deploy/standalone-ha/etcd.conf.yaml"))
	require.NoError(t, err)
	for _, guide := range []string{"docs/deploy.md", "docs/upgrade.md"} {
		text, err := os.ReadFile(filepath.Join(cluster.Checkout(), guide))
		require.NoError(t, err)
		found := written.FindAllString(string(text), -1)
		require.NotEmpty(t, found, guide)
		for _, block := range found {
			margin := block[:len(block)-len(strings.TrimLeft(block, " "))]
			block = strings.ReplaceAll("\n"+block, "\n"+margin, "\n")
			folder := w.overlay("standalone-ha", strings.ReplaceAll(block, "../deploy/", "../../deploy/"))
			require.NoError(t, os.WriteFile(filepath.Join(folder, "etcd.conf.yaml"), config, 0o600))
			out, err := w.Kubectl("apply", "--dry-run=server", "--server-side", "--validate=strict", "-n", w.namespace, "-k", folder)
			assert.NoError(t, err, "%s:\n%s\n%s", guide, block, out)
		}
	}
}

// components is the line of a kustomization that names some of deploy/components.
func components(names string) string {
	var folders []string
	for name := range strings.SplitSeq(names, ", ") {
		folders = append(folders, "../../deploy/components/"+name)
	}
	return "components: [" + strings.Join(folders, ", ") + "]\n"
}
