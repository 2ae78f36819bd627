package stories

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVariants_restrictedNamespace(t *testing.T) {
	for name, values := range map[string]string{"one": one, "three": three, "one with a sidecar": oneWithSidecar, "three with sidecars": threeWithSidecars} {
		t.Run(name, func(t *testing.T) {
			w := newNamespace(t)
			w.strictly(values)
			w.awaitPods()
			w.strictly(values)
		})
	}
}

// different matches the lines of a diff that only one of the two sides contains.
var different = regexp.MustCompile(`(?m)^(?:-[^-]|\+[^+]).*$`)

func TestVariants_upgrade(t *testing.T) {
	w := newNamespace(t)
	for _, values := range []string{one, oneWithSidecar, one, three, threeWithSidecars, three} {
		w.apply(values)
		set, err := w.Client.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "etcd-main", metav1.GetOptions{})
		require.NoError(t, err)
		out, _ := w.Kubectl("diff", "--server-side", "--field-manager=helm", "-n", w.namespace, "-f", w.rendered(values))
		for _, line := range different.FindAllString(out, -1) {
			assert.Regexp(t, "annotations:|meta.helm.sh/release", line, "after applying %s, objects still contain settings of the previous variant:\n%s", values, out)
		}
		containers := 1
		if strings.Contains(values, "sidecar") {
			containers = 2
		}
		assert.Len(t, set.Spec.Template.Spec.Containers, containers, values)
	}
}

// definitions creates the CRDs of cert-manager and the Prometheus operator. An old API server may ignore unknown
// schema fields, because only this project's objects are validated strictly.
func definitions(t *testing.T) {
	t.Helper()
	for module, folder := range map[string]string{
		"github.com/cert-manager/cert-manager":               "deploy/crds",
		"github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd",
	} {
		download := exec.Command("go", "mod", "download", "-json", module)
		download.Dir = checkout("testdata/crds")
		answer, err := download.Output()
		require.NoError(t, err)
		var downloaded struct{ Dir string }
		require.NoError(t, json.Unmarshal(answer, &downloaded))
		files, err := filepath.Glob(filepath.Join(downloaded.Dir, folder, "*_*.yaml"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			out, err := shared.Kubectl("create", "--validate=ignore", "-f", file)
			require.NoError(t, err, out)
		}
	}
	out, err := shared.Kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	require.NoError(t, err, out)
}

func TestAdditionalObjects_areValid(t *testing.T) {
	const (
		tls        = "tls: {source: cert-manager}\n"
		monitoring = "monitoring: {podMonitor: true, rules: true, dashboard: true}\n"
		clients    = "networkPolicy: {clients: {etcd-client: 'true'}, scrapers: {app: prometheus}}\n"
	)
	definitions(t)
	for name, values := range map[string][]string{
		"one":                  {one, tls + monitoring + "leases: true"},
		"three":                {three, tls + monitoring + clients + "leases: true"},
		"one with a sidecar":   {oneWithSidecar, tls + monitoring},
		"three with sidecars":  {threeWithSidecars, tls + monitoring + clients},
		"sidecars without TLS": {threeWithSidecars, monitoring + clients},
	} {
		t.Run(name, func(t *testing.T) {
			w := newNamespace(t)
			w.strictly(values...)
			w.awaitPods()
			w.strictly(values...)
		})
	}
}
