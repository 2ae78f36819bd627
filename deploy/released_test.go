package deploy

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each earlier version in the changelog must have its chart in testdata/deploy/released, from which the tests in
// testdata/deploy/chart upgrade. The latest version is exempt, because it may not have been released yet.
func TestChart_earlierVersionsAreKept(t *testing.T) {
	versions := regexp.MustCompile(`(?m)^## v(\d+\.\d+\.\d+)$`).FindAllStringSubmatch(read(t, "../docs/changelog.md"), -1)
	require.NotEmpty(t, versions)
	for _, version := range versions[1:] {
		assert.FileExists(t, filepath.Join("../testdata/deploy/released", "etcd-"+version[1]+".tgz"),
			"copy the chart from the release files of v%s, so that upgrades from it are tested", version[1])
	}
}

// The chart must require the minor version of the oldest Kubernetes release that the tests in testdata/deploy/stories
// run on, and the pages must name the oldest and the newest release.
func TestChart_kubernetesVersions(t *testing.T) {
	tested := map[string]string{}
	for _, release := range []string{"oldest", "newest"} {
		found := regexp.MustCompile(`k8s\.io/kubernetes v(\d+\.\d+)(\.\d+)`).FindStringSubmatch(read(t, filepath.Join("../testdata/kubernetes", release, "go.mod")))
		require.NotNil(t, found, release)
		tested[release] = found[1]
		for _, page := range []string{"upgrade.md", "deploy.md"} {
			assert.Contains(t, read(t, filepath.Join("../docs", page)), found[1]+found[2], "docs/%s must name the %s version", page, release)
		}
	}
	assert.Contains(t, read(t, "chart/Chart.yaml"), `kubeVersion: ">= `+tested["oldest"]+`.0-0"`)
}
