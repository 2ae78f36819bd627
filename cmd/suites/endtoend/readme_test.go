package endtoend_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/exitcode"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	return string(text)
}

func TestReadmeNamesEveryFlagAndNoOther(t *testing.T) {
	help := harness.Output(t, "start-etcd", "--help")
	named := regexp.MustCompile(`(?m)^\s+(?:-\w, )?--(?:\[no-\])?([a-z-]+)`)
	have := map[string]bool{}
	for _, match := range named.FindAllStringSubmatch(help, -1) {
		have[match[1]] = true
		if match[1] != "help" {
			assert.True(t, strings.Contains(readme(t), "--"+match[1]), "the README explains --%s", match[1])
		}
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)`").FindAllStringSubmatch(readme(t), -1) {
		assert.True(t, have[match[1]], "--%s of the README exists", match[1])
	}
}

func TestReadmeNamesEveryExitStatus(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| `).FindAllStringSubmatch(readme(t), -1)
	var documented []int
	for _, row := range rows {
		status, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		documented = append(documented, status)
		assert.False(t, strings.HasPrefix(exitcode.Code(status).String(), "status "), "%d means something", status)
	}
	for status := range 200 {
		if is := exitcode.Code(status); status < 129 && !strings.HasPrefix(is.String(), "status ") {
			assert.Contains(t, documented, status, "%s is documented", is)
		}
	}
}
