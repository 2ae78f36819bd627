// Package chart renders the Helm chart in deploy without a cluster. The tests check the rendered objects and that the
// chart rejects invalid values.
package chart

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/testdata/deploy/cluster"
)

var update = flag.Bool("update", false, "update the rendered manifests in deploy/examples")

func TestMain(m *testing.M) {
	flag.Parse()
	if err := errors.Join(cluster.BuildHelm(), cluster.BuildHelm3()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func path(parts ...string) string {
	return filepath.Join(append([]string{cluster.Checkout(), "deploy"}, parts...)...)
}

// helm runs helm, which reads the values from standard input.
func helm(values string, args ...string) (stdout, stderr string, err error) {
	return run("helm", values, args...)
}

// run is like helm but runs the given program, which is helm or helm3/helm.
func run(program, values string, args ...string) (stdout, stderr string, err error) {
	command := exec.Command(cluster.Tool(program), append(args, "--values=-")...)
	var out, errOut bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(values), &out, &errOut
	err = command.Run()
	return out.String(), errOut.String(), err
}

func render(values, release, namespace string) (rendered, stderr string, err error) {
	return helm(values, "template", release, path("chart"), "--namespace="+namespace)
}

func rendered(t *testing.T, values, release, namespace string) map[string]document {
	t.Helper()
	return objects(t, path("chart"), values, release, namespace)
}

type document = map[string]any

// objects returns the objects that a chart renders, keyed by kind and name.
func objects(t *testing.T, chart, values, release, namespace string) map[string]document {
	t.Helper()
	rendered, stderr, err := helm(values, "template", release, chart, "--namespace="+namespace)
	require.NoError(t, err, stderr)
	return parsed(t, rendered)
}

func parsed(t *testing.T, rendered string) map[string]document {
	t.Helper()
	found := map[string]document{}
	for part := range strings.SplitSeq("\n"+rendered, "\n---\n") {
		var object document
		require.NoError(t, yaml.UnmarshalStrict([]byte(part), &object), part)
		if object != nil {
			id := object["kind"].(string) + "/" + object["metadata"].(document)["name"].(string)
			require.NotContains(t, found, id, "an object is rendered twice")
			found[id] = object
		}
	}
	return found
}

func TestHelmLint_noWarnings(t *testing.T) {
	out, stderr, err := helm("{}", "lint", "--strict", path("chart"))
	assert.NoError(t, err, out+stderr)
	assert.NotContains(t, out, "WARNING")
}

// The committed examples must match the chart, because the tests in deploy do not run helm but compare the examples
// with the program.
func TestExamples_matchTheChart(t *testing.T) {
	files, err := filepath.Glob(path("examples", "*.values.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 5)
	for _, file := range files {
		values, err := os.ReadFile(file)
		require.NoError(t, err)
		rendered, stderr, err := render(string(values), "etcd-main", "etcd")
		require.NoError(t, err, stderr)
		golden := strings.TrimSuffix(file, ".values.yaml") + ".yaml"
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(rendered), 0o644))
		}
		committed, err := os.ReadFile(golden)
		require.NoError(t, err)
		assert.Equal(t, string(committed), rendered, "%s: cd testdata/deploy && go test ./chart -update", filepath.Base(golden))
	}
}

func TestValues_invalidCombinations(t *testing.T) {
	for values, message := range map[string]string{
		"replicas: 3": "store.url: 3 members need a bucket",
		"replicas: 2": "value must be one of 1, 3, 5",
		"{replicas: 3, store: {url: file:///var/etcd/data/backups}}": "store.url: several members need a bucket, because a folder is in only one pod",
		"restore: {to: latest}":   "restore.to and restore.id must be set together",
		"copy: {to: s3://second}": "copy.to: other pods cannot access backups on the member's own volume",
		"{copy: {to: s3://b}, store: {url: s3://a}, sidecar: {enabled: true}}": "copy: with sidecar.enabled=true",
		"restore: {id: again}":                                                             "restore.to and restore.id must be set together",
		"quota: 16Gi":                                                                      "volume.size: 32Gi is too small for a quota of 16Gi; set at least 56320Mi, which is 1.1 × (3 × quota + 2Gi)",
		"tls: {issuer: {name: company}}":                                                   "tls.issuer: requires tls.source=cert-manager",
		"tls: {source: secrets, names: [etcd.example.org]}":                                "tls.names: requires tls.source=cert-manager",
		"networkPolicy: {enabled: false, clients: {a: b}}":                                 "require networkPolicy.enabled=true",
		"{leases: true, sidecar: {enabled: true}}":                                         "leases: with sidecar.enabled=true, the sidecar renews the leases",
		"{store: {interval: 1s}, sidecar: {enabled: true}}":                                "store.interval: with sidecar.enabled=true, the sidecar makes and restores the backups",
		"{restore: {to: latest, id: a}, sidecar: {enabled: true}}":                         "restore: with sidecar.enabled=true",
		"{store: {signing: {secret: a}}, sidecar: {enabled: true}}":                        "store.signing: with sidecar.enabled=true",
		"{store: {url: 's3://bucket?endpoint=http://a'}, sidecar: {enabled: true}}":        "store.url: the sidecar supports only",
		"sidecar: {extraArgs: [--a]}":                                                      "sidecar.extraArgs: requires sidecar.enabled=true",
		"nameOverride: a-name-that-is-longer-than-a-label-of-a-pod-may-be":                 "nameOverride: a-name-that-is-longer-than-a-label-of-a-pod-may-be is too long",
		"nameOverride: null\nreplicas: null":                                               "missing property 'replicas'",
		"tls: {secrets: {server: mine}}":                                                   "tls.secrets: the Secrets are not used without tls.source",
		"extraEnv: [{name: POD_NAME, value: a}]":                                           "extraEnv: POD_NAME is set twice, or already set by the chart",
		"extraEnv: [{name: ETCD_WRAPPER_BACKUP_STORE, value: a}]":                          "extraEnv: ETCD_WRAPPER_BACKUP_STORE is set twice, or already set by the chart",
		"extraEnv: [{name: A, value: a}, {name: A, value: b}]":                             "extraEnv: A is set twice, or",
		"extraEnv: [{name: A, value: 5}]":                                                  "at '/extraEnv/0/value': got number, want string",
		"podLabels: {app.kubernetes.io/part-of: a}":                                        "podLabels: app.kubernetes.io/part-of is set by the chart",
		"podAnnotations: {checksum/configuration: a}":                                      "podAnnotations: checksum/configuration is set by the chart",
		"{store: {url: s3://b/p}, copy: {to: s3://b/p}}":                                   "copy.to: must not be the store of the backups",
		"{store: {url: s3://b}, copy: {to: s3://b/etcd/etcd-main}}":                        "copy.to: must not be the store of the backups",
		"{store: {url: s3://b}, copy: {to: s3://c, schedule: now}}":                        "at '/copy/schedule': 'now' does not match pattern",
		"{store: {url: 's3://b c'}}":                                                       "at '/store/url': 's3://b c' does not match pattern",
		"{store: {url: s3://b, interval: often}}":                                          "at '/store/interval': 'often' does not match pattern",
		"restore: {to: 'time:yesterday', id: a}":                                           "at '/restore/to': 'time:yesterday' does not match pattern",
		"store: {encryption: {secret: a, recipients: ''}}":                                 "store.encryption: nothing is encrypted without recipients",
		"store: {encryption: {secret: a, recipients: null}}":                               "store.encryption: nothing is encrypted without recipients",
		"store: {encryption: {secret: a, recipients: x/../../y}}":                          "at '/store/encryption/recipients': 'x/../../y' does not match pattern",
		"store: {encryption: {secret: a, identities: ../y}}":                               "at '/store/encryption/identities': '../y' does not match pattern",
		"store: {signing: {secret: a, key: '', trusted: ''}}":                              "store.signing: no keys are configured",
		"store: {signing: {secret: a, key: /key.pem}}":                                     "at '/store/signing/key': '/key.pem' does not match pattern",
		"store: {signing: {secret: a, trusted: ..}}":                                       "at '/store/signing/trusted': '..' does not match pattern",
		"store: {url: 's3://key:secret@bucket'}":                                           "at '/store/url': 's3://key:secret@bucket' does not match pattern",
		"{store: {url: s3://b}, copy: {to: 's3://key:secret@c'}}":                          "at '/copy/to': 's3://key:secret@c' does not match pattern",
		"{store: {url: s3://b}, copy: {to: s3://c, schedule: every day at three o'clock}}": "at '/copy/schedule'",
		"store: {ca: {secret: a}}":                                                         "store.ca: only a bucket has a certificate",
		"store: {url: s3://b, googleKey: {secret: a}}":                                     "store.googleKey: only gs:// uses a key file",
		"{store: {url: gs://b, googleKey: {secret: a}}, sidecar: {enabled: true}}":         "store.googleKey: with sidecar.enabled=true",
		"networkPolicy: {clients: {'a b': c}}":                                             "'a b' does not match pattern",
		"networkPolicy: {clientCIDRs: [10.0.0.1]}":                                         "at '/networkPolicy/clientCIDRs/0': '10.0.0.1' does not match pattern",
		"podLabels: {team: 'a b'}":                                                         "at '/podLabels/team': 'a b' does not match pattern",
		"store: {keep: all}":                                                               "at '/store/keep': 'all' does not match pattern",
		"store: {fullSchedule: often}":                                                     "at '/store/fullSchedule': 'often' does not match pattern",
		"store: {spoolLimit: much}":                                                        "at '/store/spoolLimit': 'much' does not match pattern",
		"restore: {to: latest, id: a b/../c}":                                              "at '/restore/id': 'a b/../c' does not match pattern",
		"etcdConfig: {data-dir: /data}":                                                    "etcdConfig: data-dir is set by the chart; remove it",
		"etcdConfig: {Wal-Dir: /data}":                                                     "etcdConfig: Wal-Dir is set by the chart; remove it",
		"{dataVersion: '3.6', sidecar: {enabled: true}}":                                   "dataVersion: the sidecar's etcd 3.5 must be able to read the data; remove dataVersion",
		"{restore: {adopt: '00000000000000000000000000000000'}, sidecar: {enabled: true}}": "restore.adopt: with sidecar.enabled=true",
		"{auth: {rootPassword: {secret: a}}, sidecar: {enabled: true}}":                    "auth.rootPassword: with sidecar.enabled=true",
		"auth: {rootPassword: {secret: a, key: ../b}}":                                     "at '/auth/rootPassword/key': '../b' does not match pattern",
		"{replicas: 3, store: {url: s3://b}, auth: {rootPassword: {secret: a}}}":           "auth.rootPassword: several members need TLS",
		"auth: {rootPassword: {secret: A}}":                                                "at '/auth/rootPassword/secret': 'A' does not match pattern",
		"{store: {ack: stored}}":                                                           "store.ack: stored requires a single member with a bucket",
		"{replicas: 3, store: {url: 's3://b', ack: stored}}":                               "store.ack: stored requires a single member with a bucket",
		"{store: {url: 's3://b', ack: stored}, sidecar: {enabled: true}}":                  "store.ack: with sidecar.enabled=true",
		"{persistence: none, store: {url: 's3://b'}}":                                      "persistence: without a volume, data is lost with the pod unless store.ack is stored",
		"store: {bucket: a}":                                                               "additional properties 'bucket' not allowed",
		"tls: {source: vault}":                                                             "value must be one of",
		"{replicas: 5, store: {url: 'ftp://bucket'}}":                                      "does not match pattern",
		"{replicas: 3, store: {url: s3://b}, etcdConfig: a}":                               "etcdConfig",
	} {
		_, stderr, err := render(values, "etcd-main", "etcd")
		assert.Error(t, err, values)
		assert.Contains(t, stderr, message, values)
	}
}

func TestReleaseName_mustBeAServiceName(t *testing.T) {
	for _, release := range []string{"a.b", "1234", strings.Repeat("a", 53)} {
		_, stderr, err := render("{}", release, "etcd")
		assert.Error(t, err, release)
		assert.Contains(t, stderr, "nameOverride: "+release+" is ")
		_, stderr, err = render("nameOverride: blue", release, "etcd")
		assert.NoError(t, err, stderr)
	}
}

func TestBucket_defaultPrefix(t *testing.T) {
	for url, want := range map[string]string{
		"":                           "file:///var/etcd/backups",
		"s3://bucket":                "s3://bucket/blue/etcd",
		"gs://bucket/":               "gs://bucket/blue/etcd",
		"azblob://c?account=a":       "azblob://c/blue/etcd?account=a",
		"s3://bucket/prefix":         "s3://bucket/prefix",
		"s3://b/p?endpoint=http://a": "s3://b/p?endpoint=http://a",
	} {
		set := rendered(t, "store: {url: '"+url+"'}", "etcd", "blue")["StatefulSet/etcd"]
		text, err := yaml.Marshal(set)
		require.NoError(t, err)
		assert.Contains(t, string(text), "name: ETCD_WRAPPER_BACKUP_STORE\n          value: "+want+"\n")
	}
}

func TestAMemberThatLosesNothingNeedsNoClaim(t *testing.T) {
	found := rendered(t, "{persistence: none, volume: {size: 40Gi}, store: {url: 's3://bucket', ack: stored}}", "etcd-main", "etcd")
	spec := found["StatefulSet/etcd-main"]["spec"].(document)
	assert.NotContains(t, spec, "volumeClaimTemplates")
	pod := spec["template"].(document)["spec"].(document)
	assert.Contains(t, pod["volumes"], document{"name": "etcd-main", "emptyDir": document{"sizeLimit": "40Gi"}})
	env := pod["containers"].([]any)[0].(document)["env"]
	assert.Contains(t, env, document{"name": "ETCD_WRAPPER_BACKUP_ACK", "value": "stored"})
}

// Two releases must not share any objects, names or selectors, even in the same namespace.
func TestReleases_areIndependent(t *testing.T) {
	const values = `{replicas: 3, store: {url: s3://bucket}, leases: true, tls: {source: cert-manager}, monitoring: {podMonitor: true}}`
	blue, green := rendered(t, values, "blue", "one"), rendered(t, values, "green", "one")
	for id := range blue {
		assert.NotContains(t, green, id)
	}
	ids := map[string]bool{}
	for _, of := range [][]string{{"blue", "one"}, {"green", "one"}, {"blue", "two"}} {
		config := rendered(t, values, of[0], of[1])["ConfigMap/"+of[0]+"-config"]["data"].(document)["etcd.conf.yaml"].(string)
		for _, line := range regexp.MustCompile(`(?m)^initial-cluster(?:-token)?: .*$`).FindAllString(config, -1) {
			assert.False(t, ids[line], "%s is used by both releases", line)
			ids[line] = true
		}
	}
	assert.Len(t, ids, 6)
}

// block matches an indented code block on a documentation page.
var block = regexp.MustCompile(`(?m)(?:^    .*\n)+`)

// Changing the number of members must not change the pod template, because that would restart the remaining members.
func TestReplicas_keepThePodTemplate(t *testing.T) {
	template := func(replicas int) any {
		set := rendered(t, fmt.Sprintf("{replicas: %d, store: {url: s3://b}}", replicas), "etcd", "blue")["StatefulSet/etcd"]
		return set["spec"].(map[string]any)["template"]
	}
	for _, replicas := range []int{3, 5} {
		assert.Equal(t, template(1), template(replicas))
	}
}

func TestValues_ofTheGuides(t *testing.T) {
	content, err := os.ReadFile(path("chart", "values.yaml"))
	require.NoError(t, err)
	var known document
	require.NoError(t, yaml.Unmarshal(content, &known))
	for _, guide := range []string{"README.md", "docs/deploy.md", "docs/operations.md", "docs/upgrade.md"} {
		text, err := os.ReadFile(path("..", guide))
		require.NoError(t, err)
		found := 0
		for _, values := range block.FindAllString(string(text), -1) {
			margin := values[:len(values)-len(strings.TrimLeft(values, " "))]
			values = strings.ReplaceAll("\n"+values, "\n"+margin, "\n")[1:]
			key, _, _ := strings.Cut(values, ":")
			if _, ok := known[key]; !ok {
				continue
			}
			found++
			if !strings.Contains(values, "url:") {
				values += "\nstore: {url: s3://my-bucket}\n"
			}
			_, stderr, err := render(values, "etcd-main", "etcd")
			assert.NoError(t, err, "%s: %s\n%s", guide, values, stderr)
		}
		assert.True(t, found > 0 || guide == "README.md", guide)
	}
}
