package stories

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

// registry is what the README calls the reader's own.
const registry = "registry.example.org/etcd-wrapper"

// kustomization is what the README has its readers write, word by word.
func kustomization(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(cluster.Checkout(), "README.md"))
	require.NoError(t, err)
	found := regexp.MustCompile(`(?s)cat > my-etcd/kustomization\.yaml <<EOF\n(.*?) *EOF\n`).FindSubmatch(readme)
	require.NotNil(t, found)
	return strings.ReplaceAll(string(found[1]), "\n    ", "\n")
}

func TestAStrangerGetsThreeMembersByTheReadmeAlone(t *testing.T) {
	w := newWorld(t)
	folder := filepath.Join(cluster.Checkout(), "bin", "my-etcd")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	text := strings.ReplaceAll(strings.TrimPrefix(kustomization(t), "    "), "../deploy/", "../../deploy/") // from where a test may write
	require.NoError(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600))
	w.apply("bin/my-etcd")
	w.awaitReady(3)
	w.greet()
	assert.True(t, w.greeted())
	for name, pod := range w.pods() {
		assert.Equal(t, registry+":v1", pod.Spec.Containers[0].Image)
		assert.Contains(t, w.asked(name, "status"), "Serving, ready")
	}
}
