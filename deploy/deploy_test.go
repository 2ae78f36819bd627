// Package deploy contains the chart and the tests that compare the rendered examples with the program: all flags,
// paths and metrics in the examples must exist, and etcd must accept the configurations. `make test-deploy` checks
// that the examples have been rendered from the chart, that a cluster accepts them, and that their pods run.
package deploy

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/lifecycle"
)

type document = map[string]any

// documents returns the objects in all rendered examples, keyed by file.
func documents(t *testing.T) map[string][]document {
	t.Helper()
	found := map[string][]document{}
	files, err := filepath.Glob("examples/*.yaml")
	require.NoError(t, err)
	for _, path := range files {
		if strings.HasSuffix(path, ".values.yaml") {
			continue
		}
		for part := range strings.SplitSeq("\n"+read(t, path), "\n---\n") {
			var parsed any
			require.NoError(t, yaml.UnmarshalStrict([]byte(part), &parsed), path)
			if mapping, ok := parsed.(document); ok {
				found[path] = append(found[path], mapping)
			}
		}
	}
	require.Len(t, found, 5)
	return found
}

// object returns the object with the given kind and name from a rendered example.
func object(t *testing.T, example, kind, name string) document {
	t.Helper()
	for _, part := range documents(t)["examples/"+example+".yaml"] {
		if part["kind"] == kind && part["metadata"].(document)["name"] == name {
			return part
		}
	}
	require.Fail(t, "object not found", "%s %s in %s", kind, name, example)
	return nil
}

func configuration(t *testing.T, example string) string {
	t.Helper()
	return object(t, example, "ConfigMap", "etcd-main-config")["data"].(document)["etcd.conf.yaml"].(string)
}

// each calls visit for every mapping in a document, however deeply nested.
func each(value any, visit func(document)) {
	switch value := value.(type) {
	case document:
		visit(value)
		for _, key := range slices.Sorted(maps.Keys(value)) {
			each(value[key], visit)
		}
	case []any:
		for _, element := range value {
			each(element, visit)
		}
	}
}

func listed(parts []document) (all []any) {
	for _, part := range parts {
		all = append(all, part)
	}
	return all
}

func TestProbes_useExistingPaths(t *testing.T) {
	set := object(t, "one", "StatefulSet", "etcd-main")
	ports, paths, grace := map[any]any{}, []string{}, 0.0
	each(set, func(m document) {
		if number, ok := m["containerPort"]; ok {
			ports[m["name"]] = number
		}
		if probe, ok := m["httpGet"].(document); ok {
			paths = append(paths, probe["path"].(string))
			assert.Equal(t, "wrapper", probe["port"])
		}
		if seconds, ok := m["terminationGracePeriodSeconds"].(float64); ok {
			grace = seconds
		}
	})
	assert.EqualValues(t, map[any]any{"client": 2379.0, "server": 2380.0, "metrics": 2381.0, "wrapper": 9095.0}, ports)
	assert.ElementsMatch(t, []string{"/readyz", "/livez"}, paths)
	assert.Greater(t, time.Duration(grace)*time.Second, lifecycle.StopBudget, "the grace period must be longer than the time that a stop may take")
}

// A restore test must write to the volume: it leaves a file as large as the database if it is killed, and the wrapper
// only removes such files from its own volume.
func TestRestoreInAPod_usesTheWrappersDirectory(t *testing.T) {
	volume, ok := reflect.TypeFor[commandline.StartEtcd]().FieldByName("VolumeDir")
	require.True(t, ok)
	found := ""
	each(object(t, "one", "StatefulSet", "etcd-main"), func(m document) {
		if m["name"] == "TMPDIR" {
			found, _ = m["value"].(string)
		}
	})
	assert.Equal(t, volume.Tag.Get("default"), found)
}

// The size in the claim template must be large enough from the start, because it cannot be changed later. A volume
// must have room for three times the quota: the database, a copy, and the copies that recoveries preserve.
func TestVolumeSize_threeDatabases(t *testing.T) {
	var etcd struct {
		Quota int64 `json:"quota-backend-bytes"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(configuration(t, "one")), &etcd))
	var size int64 // in GiB
	each(object(t, "one", "StatefulSet", "etcd-main"), func(m document) {
		if storage, ok := m["storage"].(string); ok {
			_, err := fmt.Sscanf(storage, "%dGi", &size)
			require.NoError(t, err)
		}
	})
	assert.Greater(t, size<<30*9/10, 3*etcd.Quota+1<<30, "the volume is too small: restore tests leave a tenth of it free")
}

func TestMemberConfigurations_areValid(t *testing.T) {
	for example, members := range map[string]int{"one": 1, "three": 3, "one-with-sidecar": 1, "three-with-sidecars": 3, "everything": 5} {
		content := []byte(configuration(t, example))
		var all struct {
			Members map[string][]string `json:"initial-advertise-peer-urls"`
			Token   string              `json:"initial-cluster-token"`
		}
		require.NoError(t, yaml.Unmarshal(content, &all))
		assert.Len(t, all.Members, members)
		assert.Equal(t, "etcd/etcd-main", all.Token, "the token must consist of namespace and release")
		for pod, urls := range all.Members {
			assert.Contains(t, urls[0], pod+".etcd-main-peer.etcd.svc:2380")
			own, err := etcdconf.ForMember(content, pod)
			require.NoError(t, err)
			own = withoutCertificates(t, own)
			checked, err := etcdconf.Parse(own)
			require.NoError(t, err, example)
			assert.Empty(t, checked.Warnings)
			assert.Equal(t, pod, checked.Etcd.Name)
			assert.Equal(t, strings.Replace(urls[0], "https", "http", 1), checked.Etcd.AdvertisePeerUrls[0].String())
			assert.True(t, strings.HasPrefix(checked.Etcd.Dir, "/var/etcd/data/"), "%s: the data directory must be on the volume", example)
			assert.Len(t, strings.Split(checked.Etcd.InitialCluster, ","), members)
		}
	}
}

// withoutCertificates replaces https with http and removes the TLS sections from a configuration whose certificate
// files do not exist.
func withoutCertificates(t *testing.T, own []byte) []byte {
	t.Helper()
	if _, err := etcdconf.Parse(own); !errors.Is(err, bootstrap.ErrCertificates) {
		return own
	}
	var keys document
	require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(string(own), "https://", "http://")), &keys))
	delete(keys, "client-transport-security")
	delete(keys, "peer-transport-security")
	plain, err := yaml.Marshal(keys)
	require.NoError(t, err)
	return plain
}

func TestExamples_withAndWithoutSidecarsHaveTheSameConfiguration(t *testing.T) {
	assert.Equal(t, configuration(t, "three"), configuration(t, "three-with-sidecars"))
}
