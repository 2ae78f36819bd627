package deploy

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The charts in testdata/deploy/released are upgraded to the present one (testdata/deploy/chart). The newest version of the changelog
// is the one that is being made.
func TestTheChartOfEveryEarlierVersionIsKept(t *testing.T) {
	versions := regexp.MustCompile(`(?m)^## v(\d+\.\d+\.\d+)$`).FindAllStringSubmatch(read(t, "../docs/changelog.md"), -1)
	require.NotEmpty(t, versions)
	for _, version := range versions[1:] {
		assert.FileExists(t, filepath.Join("../testdata/deploy/released", "etcd-"+version[1]+".tgz"),
			"copy it from what was published of v%s, so that upgrades from it are tested", version[1])
	}
}
