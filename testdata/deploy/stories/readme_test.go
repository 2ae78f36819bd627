package stories

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

// Placeholder names in the README, except the bucket name.
const (
	placeholderRegistry = "registry.example.org"
	placeholderBucket   = "my-bucket"
)

// deployCommands returns the commands in the README, unchanged.
func deployCommands(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(cluster.Checkout(), "README.md"))
	require.NoError(t, err)
	found := regexp.MustCompile(`(?s)\n## Deploy\n.*?\n\n((?:    [^\n]*\n)+)`).FindSubmatch(readme)
	require.NotNil(t, found)
	commands := regexp.MustCompile(`(?m)^    `).ReplaceAllString(string(found[1]), "")
	require.Contains(t, commands, placeholderRegistry)
	require.Contains(t, commands, placeholderBucket)
	return commands
}

func TestReadme_threeMembersWithBackups(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	w := &environment{Cluster: shared, t: t, namespace: "etcd", release: "etcd-main", image: wrapper} // the commands in the README create the namespace
	t.Cleanup(w.end)
	w.run()
	w.offerBucket()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	mine := strings.TrimPrefix(server.URL, "http://")
	w.node.PullFrom(mine)

	out := w.follow(strings.ReplaceAll(deployCommands(t), placeholderRegistry, mine))
	assert.Contains(t, out, "rolling update complete 3 pods")
	for name, pod := range w.pods() {
		assert.True(t, strings.HasPrefix(pod.Spec.Containers[0].Image, mine+"/"), "%s does not run the pushed image", name)
	}
	writes := w.startWriter()
	w.checkBackups("etcd-main-0", writes)
	assert.Len(t, w.voters(), 3)
}

// follow runs commands in the project's root directory with a user's credentials file, and removes the file that the
// commands create.
func (w *environment) follow(commands string) (output string) {
	w.t.Helper()
	made := filepath.Join(cluster.Checkout(), "my-etcd.yaml")
	require.NoFileExists(w.t, made)
	w.t.Cleanup(func() { _ = os.Remove(made) })
	secrets := ""
	for name, value := range credentials {
		secrets += name + "=" + value + "\n"
	}
	home := w.t.TempDir()
	require.NoError(w.t, os.WriteFile(filepath.Join(home, "aws.env"), []byte(secrets), 0o600))
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*cluster.Patience)
	defer cancel()
	command := w.shell(ctx, cluster.Checkout(), commands)
	command.Env = append(append(command.Env, "HOME="+home, "VERSION="+cluster.Version), built(w.t)...)
	out, err := command.CombinedOutput()
	w.t.Logf("%s", out)
	require.NoError(w.t, err)
	return string(out)
}

// built returns environment variables that point to Go's caches, because the commands run with another home
// directory.
func built(t *testing.T) (variables []string) {
	t.Helper()
	names := []string{"GOCACHE", "GOMODCACHE", "GOPATH"}
	values, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	require.NoError(t, err)
	for i, value := range strings.Fields(string(values)) {
		variables = append(variables, names[i]+"="+value)
	}
	return variables
}
