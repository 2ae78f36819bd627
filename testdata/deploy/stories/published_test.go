package stories

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// The test installs two releases with different names, IDs and store prefixes in the same namespace and bucket. The
// test uses only release files: the nodes load the image from a file, as described in docs/deploy.md, and the
// kubectl plugin is the script in the archive.
func TestReleaseFiles_twoClusters(t *testing.T) {
	needsRoot(t)
	folder := t.TempDir()
	require.NoError(t, os.CopyFS(folder, os.DirFS(cluster.Published())))
	within(t, folder, "sha256sum", "--check", "--strict", "SHA256SUMS")
	within(t, folder, "tar", "-xzf", only(t, folder, "etcd-wrapper_*_linux_"+runtime.GOARCH+".tar.gz"))
	layout := filepath.Join(folder, "layout")
	require.NoError(t, os.Mkdir(layout, 0o700))
	within(t, layout, "tar", "-xf", only(t, folder, "etcd-wrapper_*_image.tar"))
	image, err := node.Unpack(layout, filepath.Join(folder, "image"))
	require.NoError(t, err)

	w := newNamespace(t)
	w.image = image
	w.run()
	w.offerBucket()
	chart := only(t, folder, "etcd-*.tgz")
	other := *w
	other.release = "other"
	releases := []*environment{w, &other}
	for _, r := range releases {
		w.secret(r.release+"-backup-credentials", credentials)
		out, err := w.Helm("install", r.release, chart, "--namespace", w.namespace, "--set", "replicas=3,store.url=s3://my-bucket")
		require.NoError(t, err, out)
	}
	for _, r := range releases {
		r.awaitReady(3)
		member := r.release + "-1"
		r.checkBackups(member, r.startWriter())
		asked, err := r.shell(t.Context(), folder, fmt.Sprintf(`PATH=.:$PATH
for what in status members "backup list"; do kubectl etcd -n %s --release=%s $what; done`, r.namespace, r.release)).CombinedOutput()
		require.NoError(t, err, "%s", asked)
		assert.NoError(t, contains(string(asked), r.release+"-0", member, r.release+"-2", "verified"))
	}
	w.greet()
	assert.Empty(t, other.get("greeting").Kvs)
	assert.NotEqual(t, w.clusterID(), other.clusterID())
	assert.ElementsMatch(t, []string{"other-0", "other-1", "other-2"}, other.voters())
}

func within(t *testing.T, folder, name string, args ...string) {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir = folder
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// only returns the one file in a directory that matches a pattern.
func only(t *testing.T, folder, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, pattern))
	require.NoError(t, err)
	require.Len(t, found, 1, pattern)
	return found[0]
}
