package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

// all returns the label names of each metric by metric name, without the namespace.
func all(t *testing.T) map[string][]string {
	m := newMetrics()
	m.Handler(document, []string{"Query"})
	families, err := m.registry.Gather()
	require.NoError(t, err)
	found := map[string][]string{}
	for _, family := range families {
		labels := []string{}
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		found[strings.TrimPrefix(family.GetName(), namespace+"_")] = labels
	}
	return found
}

func TestDocumentCoversEveryMetric(t *testing.T) {
	source, err := os.ReadFile("metrics.go")
	require.NoError(t, err)
	for _, call := range regexp.MustCompile(`m\.add\w*\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		assert.Contains(t, all(t), call[1], "extend document in metrics_test.go so that this metric is present")
	}
}

func TestEveryMetricIsDocumentedWithItsLabels(t *testing.T) {
	rows := docs.Table(t, "metric, after `etcd_wrapper_`", "labels", "meaning")
	metrics := all(t)
	require.NotEmpty(t, metrics)
	named := map[string]bool{}
	for name, labels := range metrics {
		row := rowOf(rows, name)
		if !assert.NotNil(t, row, "add %s to the table of metrics in README.md or docs/*.md", name) {
			continue
		}
		named[row[0]] = true
		for _, label := range labels {
			assert.Contains(t, docs.Quoted(row[1]), label, "%s has this label", name)
		}
	}
	for _, row := range rows {
		assert.True(t, named[row[0]], "%s is documented but is not a metric: remove or rename it", row[0])
	}
}

// rowOf returns the table row that documents a metric. A row for "`a_`, `b_` and `c_seconds`" documents three metrics
// that share a suffix.
func rowOf(rows []docs.Row, name string) docs.Row {
	for _, row := range rows {
		names := docs.Quoted(row[0])
		for _, prefix := range names {
			ending, found := strings.CutPrefix(name, prefix)
			if prefix == name || found && strings.HasSuffix(prefix, "_") && strings.HasSuffix(names[len(names)-1], "_"+ending) {
				return row
			}
		}
	}
	return nil
}
