package chart

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

// frozen returns the immutable fields of all objects. The API server rejects an upgrade that changes any of them, and
// an upgrade that drops an object loses its data.
func frozen(all map[string]document) map[string]document {
	found := map[string]document{}
	for id, object := range all {
		spec, _ := object["spec"].(document)
		kind, _, _ := strings.Cut(id, "/")
		switch kind {
		case "StatefulSet":
			kept := maps.Clone(spec)
			for _, changeable := range []string{"replicas", "template", "updateStrategy", "minReadySeconds", "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy", "ordinals"} {
				delete(kept, changeable)
			}
			found[id] = kept
		case "PersistentVolumeClaim":
			kept := maps.Clone(spec)
			delete(kept, "resources")
			found[id] = kept
		case "Service":
			found[id] = document{"clusterIP": spec["clusterIP"]}
		case "RoleBinding":
			found[id] = document{"roleRef": object["roleRef"]}
		}
	}
	return found
}

func TestValues_keepImmutableFields(t *testing.T) {
	const set = "StatefulSet/etcd-main"
	fixed := func(values string) document { return frozen(rendered(t, values, "etcd-main", "etcd"))[set] }
	files, err := filepath.Glob(path("examples", "*.values.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		values := regexp.MustCompile(`(?m)^volume:.*\n`).ReplaceAllString(string(content), "")
		assert.Equal(t, fixed("{}"), fixed(values), file)
	}
}

// An upgrade from any released version must keep all immutable fields, because users may skip versions.
func TestVersions_keepImmutableFields(t *testing.T) {
	for _, chart := range cluster.Released() {
		for _, values := range []string{
			"{}", "{replicas: 3, store: {url: s3://b}, tls: {source: cert-manager}}", "sidecar: {enabled: true}",
			"{replicas: 3, store: {url: s3://b}, sidecar: {enabled: true}, tls: {source: secrets}}",
			"{nameOverride: other, leases: true, store: {url: s3://b}, volume: {storageClass: fast, size: 64Gi}}",
			"{store: {volume: {storageClass: slow}}}",
		} {
			then, now := frozen(objects(t, chart, values, "etcd-main", "etcd")), frozen(rendered(t, values, "etcd-main", "etcd"))
			assert.GreaterOrEqual(t, len(then), 3, "a StatefulSet and two Services")
			for id, old := range then {
				assert.Equal(t, old, now[id], "%s of %s, with %s", id, filepath.Base(chart), values)
			}
		}
	}
}
