package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parent returns a chart that depends on this chart and passes values to it.
func parent(t *testing.T, values string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "shop")
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "charts"), 0o755))
	require.NoError(t, exec.Command("cp", "-r", path("chart"), filepath.Join(folder, "charts", "etcd")).Run())
	for name, content := range map[string]string{
		"Chart.yaml":  "{apiVersion: v2, name: shop, version: 0.1.0, dependencies: [{name: etcd, version: 0.1.0}]}",
		"values.yaml": "{global: {registry: example.org}, etcd: {" + values + "}}",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	return folder
}

func TestChartAsDependency(t *testing.T) {
	for _, program := range []string{"helm", "helm3/helm"} {
		for values, set := range map[string]string{
			"":                       "StatefulSet/blue-etcd",
			"nameOverride: register": "StatefulSet/register",
		} {
			rendered, stderr, err := run(program, "{}", "template", "blue", parent(t, values), "--namespace=one")
			require.NoError(t, err, "%s: %s", program, stderr)
			assert.Contains(t, parsed(t, rendered), set, program)
		}
	}
}

func TestHelm3RendersTheSame(t *testing.T) {
	files, err := filepath.Glob(path("examples", "*.values.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		values, err := os.ReadFile(file)
		require.NoError(t, err)
		newest, _, err := run("helm", string(values), "template", "etcd-main", path("chart"), "--namespace=etcd", "--kube-version=1.30.0")
		require.NoError(t, err)
		older, stderr, err := run("helm3/helm", string(values), "template", "etcd-main", path("chart"), "--namespace=etcd", "--kube-version=1.30.0")
		require.NoError(t, err, stderr)
		a, b := parsed(t, newest), parsed(t, older)
		for _, objects := range []map[string]document{a, b} { // ignore differences in trailing newlines
			data := objects["ConfigMap/etcd-main-config"]["data"].(document)
			data["etcd.conf.yaml"] = strings.TrimSpace(data["etcd.conf.yaml"].(string))
		}
		assert.Equal(t, a, b, filepath.Base(file))
	}
}

// The chart must quote names that YAML would otherwise parse as a boolean or as null.
func TestNames_areQuotedInYAML(t *testing.T) {
	for _, name := range []string{"true", "null", "yes", "on"} {
		values := "{store: {url: s3://b, secret: " + "'null'" + "}, priorityClassName: 'true', leases: true, tls: {source: cert-manager}, monitoring: {podMonitor: true}, copy: {to: s3://c}}"
		assert.Contains(t, rendered(t, values, name, "etcd"), "StatefulSet/"+name)
	}
}

// podOf returns the pod template of the StatefulSet.
func podOf(t *testing.T, values string) document {
	t.Helper()
	set := rendered(t, values, "etcd", "blue")["StatefulSet/etcd"]
	return set["spec"].(document)["template"].(document)["spec"].(document)
}

func TestSecurityContexts_canBeOmitted(t *testing.T) {
	pod := podOf(t, "{podSecurityContext: null, securityContext: null}")
	assert.NotContains(t, pod, "securityContext")
	assert.NotContains(t, pod["containers"].([]any)[0], "securityContext")
	pod = podOf(t, "{podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}}")
	assert.Equal(t, document{"runAsNonRoot": true, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": document{"type": "RuntimeDefault"}}, pod["securityContext"])
}

func TestAffinity_replacesSpread(t *testing.T) {
	const three = "replicas: 3, store: {url: s3://b}"
	pod := podOf(t, "{"+three+", affinity: {nodeAffinity: {}}, topologySpreadConstraints: [{topologyKey: rack}]}")
	assert.Equal(t, document{"nodeAffinity": document{}}, pod["affinity"])
	assert.Equal(t, []any{document{"topologyKey": "rack"}}, pod["topologySpreadConstraints"])
	pod = podOf(t, "{"+three+"}")
	assert.Contains(t, pod["affinity"], "podAntiAffinity")
	assert.Len(t, pod["topologySpreadConstraints"], 1)
}

func TestNetworkPolicy_scrapersAndClientPort(t *testing.T) {
	for _, values := range []string{
		"{networkPolicy: {scrapers: {app: prometheus}, clients: {etcd-client: yes-please}}}",
		"{networkPolicy: {scrapers: {app: prometheus}, clientCIDRs: [10.0.0.0/8]}}",
	} {
		policy := rendered(t, values, "etcd", "blue")["NetworkPolicy/etcd"]
		for _, rule := range policy["spec"].(document)["ingress"].([]any)[1:] {
			rule := rule.(document)
			require.NotEmpty(t, rule["from"], values)
			scrapers := false
			for _, from := range rule["from"].([]any) {
				selector, _ := from.(document)["podSelector"].(document)
				scrapers = scrapers || assert.ObjectsAreEqual(document{"app": "prometheus"}, selector["matchLabels"])
			}
			for _, port := range rule["ports"].([]any) {
				assert.False(t, scrapers && assert.ObjectsAreEqual(document{"port": 2379.0}, port), "%s opens the client port to scrapers", values)
			}
		}
	}
}
