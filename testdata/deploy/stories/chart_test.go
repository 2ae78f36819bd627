package stories

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

// Chart values for one member with backups on a volume, for three members with backups in a bucket, and for three
// such members with sidecars.
const (
	one               = "{}"
	oneWithSidecar    = "sidecar: {enabled: true}"
	three             = "replicas: 3\nstore: {url: s3://my-bucket/etcd-main}"
	threeWithSidecars = three + "\n" + oneWithSidecar
)

// apply installs or upgrades the chart with the given values. Like the helm command, it drops the values from
// previous calls.
func (w *environment) apply(values ...string) {
	w.t.Helper()
	out, err := w.upgrade(values...)
	require.NoError(w.t, err, out)
	require.NotContains(w.t, out, "Warning")
}

func (w *environment) upgrade(values ...string) (out string, err error) {
	w.t.Helper()
	return w.Helm(append([]string{"upgrade", "--install", "--reset-values", w.release, "deploy/chart", "-n", w.namespace}, w.files(values)...)...)
}

// rendered writes the rendered objects to a file and returns its path.
func (w *environment) rendered(values ...string) (file string) {
	w.t.Helper()
	out, err := w.Helm(append([]string{"template", w.release, "deploy/chart", "-n", w.namespace}, w.files(values)...)...)
	require.NoError(w.t, err, out)
	return w.file("rendered.yaml", out)
}

func (w *environment) files(values []string) (arguments []string) {
	w.t.Helper()
	for i, text := range values {
		arguments = append(arguments, "--values="+w.file(strconv.Itoa(i)+".yaml", text))
	}
	return arguments
}

func (w *environment) file(name, content string) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), name)
	require.NoError(w.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// strictly applies the rendered objects, and fails the test on unknown fields or violations of the Pod Security
// Standard.
func (w *environment) strictly(values ...string) {
	w.t.Helper()
	out, err := w.Kubectl("apply", "--server-side", "--validate=strict", "-n", w.namespace, "-f", w.rendered(values...))
	require.NoError(w.t, err, out)
	require.NotContains(w.t, out, "Warning")
}

// checkout returns the path of a file in the project.
func checkout(path ...string) string {
	return filepath.Join(append([]string{cluster.Checkout()}, path...)...)
}
