package stories

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

const sidecarImage = "europe-docker.pkg.dev/gardener-project/releases/gardener/etcdbrctl"

// scriptedSidecar returns the image that replaces the real sidecar's.
func scriptedSidecar(t *testing.T) *node.Image {
	t.Helper()
	root := filepath.Join(t.TempDir(), "sidecar")
	require.NoError(t, os.MkdirAll(root, 0o755))
	content, err := os.ReadFile(cluster.Tool("sidecar"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "etcdbrctl"), content, 0o755))
	return &node.Image{Root: root, Config: v1.Config{Entrypoint: []string{"/etcdbrctl"}, Env: []string{"HOME=/home/nonroot"}}}
}
