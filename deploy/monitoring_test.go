package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const monitoring = "chart/files"

func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(content)
}

func TestRulesAndDashboard_useExistingMetrics(t *testing.T) {
	known := read(t, "../docs/api.md")
	names := regexp.MustCompile(`etcd_wrapper_(\w+)`)
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		found := names.FindAllStringSubmatch(read(t, monitoring, file), -1)
		assert.NotEmpty(t, found, file)
		for _, name := range found {
			assert.True(t, strings.Contains(known, "`"+name[1]+"`"), "%s: docs/api.md does not list the metric %s", file, name[0])
		}
	}
}

func TestRunbook_coversEveryAlert(t *testing.T) {
	runbook := read(t, "../docs/runbook.md")
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(read(t, monitoring, "rules.yaml"), -1)
	require.NotEmpty(t, alerts)
	for _, alert := range alerts {
		assert.True(t, strings.Contains(runbook, "| `"+alert[1]+"` |"), "the runbook has no row for the alert %s", alert[1])
	}
}
