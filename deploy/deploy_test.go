// Package deploy has the manifests, and the tests that hold them against the program: what they name exists, and etcd takes
// their configurations. That a cluster takes them and their pods run is for `make test-deploy`.
package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
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

// documents are all that stand in the YAML files, by path; the Go modules beside them are left out.
func documents(t *testing.T) map[string][]document {
	t.Helper()
	found := map[string][]document{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" || strings.HasSuffix(path, "conf.yaml") {
			return err
		}
		content, err := os.ReadFile(path)
		for part := range bytes.SplitSeq(content, []byte("\n---\n")) {
			var parsed any
			err = errors.Join(err, yaml.UnmarshalStrict(part, &parsed))
			if mapping, ok := parsed.(document); ok {
				found[path] = append(found[path], mapping)
			}
		}
		return err
	}))
	require.NotEmpty(t, found)
	return found
}

// each visits every mapping in a document, however deep.
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

func TestProbesAskWhatTheProgramAnswers(t *testing.T) {
	set := documents(t)["base/statefulset.yaml"][0]
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
	assert.EqualValues(t, map[any]any{"client": 2379.0, "server": 2380.0, "wrapper": 9095.0}, ports)
	assert.ElementsMatch(t, []string{"/readyz", "/livez"}, paths)
	assert.Greater(t, time.Duration(grace)*time.Second, lifecycle.StopBudget, "a stop ends before it is cut off")
}

// A test restore that was killed leaves as much as a database, which the wrapper removes from its volume and from nowhere else.
func TestACommandInAPodRestoresToWhereTheWrapperLooksForRemains(t *testing.T) {
	volume, ok := reflect.TypeFor[commandline.StartEtcd]().FieldByName("VolumeDir")
	require.True(t, ok)
	found := ""
	each(listed(documents(t)["components/without-sidecar/statefulset.yaml"]), func(m document) {
		if m["name"] == "TMPDIR" {
			found, _ = m["value"].(string)
		}
	})
	assert.Equal(t, volume.Tag.Get("default"), found)
}

// The template of a claim cannot be changed later, and each of three may be as large as the quota: the database, a copy of it,
// and what a recovery has set aside.
func TestAVolumeHasRoomForThreeDatabases(t *testing.T) {
	configuration, err := os.ReadFile("standalone/etcd.conf.yaml")
	require.NoError(t, err)
	var etcd struct {
		Quota int64 `json:"quota-backend-bytes"`
	}
	require.NoError(t, yaml.Unmarshal(configuration, &etcd))
	var size int64 // Gi
	each(documents(t)["base/statefulset.yaml"][0], func(m document) {
		if storage, ok := m["storage"].(string); ok {
			_, err = fmt.Sscanf(storage, "%dGi", &size)
		}
	})
	require.NoError(t, err)
	assert.Greater(t, size<<30*9/10, 3*etcd.Quota+1<<30, "a tenth is not used by test restores")
}

func TestEtcdTakesTheConfigurationsOfAllMembers(t *testing.T) {
	files, err := filepath.Glob("*/etcd.conf.yaml")
	require.NoError(t, err)
	further, err := filepath.Glob("components/*/*.conf.yaml")
	require.NoError(t, err)
	for _, file := range append(files, further...) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var all struct {
			Members map[string][]string `json:"initial-advertise-peer-urls"`
		}
		require.NoError(t, yaml.Unmarshal(content, &all))
		for pod, urls := range all.Members {
			own, err := etcdconf.ForMember(content, pod)
			require.NoError(t, err)
			checked, err := etcdconf.Parse(own)
			if errors.Is(err, bootstrap.ErrCertificates) {
				continue // they are in the pod
			}
			require.NoError(t, err, file)
			assert.Empty(t, checked.Unknown)
			assert.Empty(t, checked.Warnings)
			assert.Equal(t, pod, checked.Etcd.Name)
			assert.Equal(t, urls[0], checked.Etcd.AdvertisePeerUrls[0].String())
			assert.True(t, strings.HasPrefix(checked.Etcd.Dir, "/var/etcd/data/"), "%s: the data are on the volume", file)
			assert.Len(t, strings.Split(checked.Etcd.InitialCluster, ","), len(all.Members))
		}
	}
	assert.Len(t, files, 4)
}

func TestBothFlavoursHaveTheSameConfiguration(t *testing.T) {
	for one, other := range map[string]string{"standalone": "sidecar", "standalone-ha": "sidecar-ha"} {
		want, err := os.ReadFile(filepath.Join(one, "etcd.conf.yaml"))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(other, "etcd.conf.yaml"))
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got))
	}
}

func TestEveryManifestIsUsed(t *testing.T) {
	used := map[string]bool{}
	for path, parts := range documents(t) {
		if filepath.Base(path) != "kustomization.yaml" {
			continue
		}
		used[path] = true
		each(listed(parts), func(m document) {
			for _, key := range []string{"resources", "components", "files"} {
				list, _ := m[key].([]any)
				for _, element := range list {
					_, file, ok := strings.Cut(element.(string), "=")
					if !ok {
						file = element.(string)
					}
					used[filepath.Join(filepath.Dir(path), file)] = true
				}
			}
			if file, ok := m["path"].(string); ok {
				used[filepath.Join(filepath.Dir(path), file)] = true
			}
		})
	}
	for file := range used {
		_, err := os.Stat(file)
		assert.NoError(t, err)
	}
	for file := range documents(t) {
		assert.True(t, used[file], "no kustomization names %s", file)
	}
}
