package metrics

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

// described is what a description says in its text form, which is all that it tells.
var described = regexp.MustCompile(`fqName: "etcd_wrapper_([a-z_]+)", .*variableLabels: \{([a-z_,]*)\}`)

// all returns the labels of every metric by its name.
func all(t *testing.T) map[string][]string {
	descriptions := make(chan *prometheus.Desc, 100)
	New().registry(nil, nil).Describe(descriptions)
	close(descriptions)
	found := map[string][]string{}
	for description := range descriptions {
		parts := described.FindStringSubmatch(description.String())
		require.NotNil(t, parts, description)
		found[parts[1]] = strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' })
	}
	return found
}

func TestEveryMetricIsDocumentedWithItsLabels(t *testing.T) {
	rows := docs.Table(t, "metric, after `etcd_wrapper_`", "labels", "meaning")
	metrics := all(t)
	require.NotEmpty(t, metrics)
	named := map[string]bool{}
	for name, labels := range metrics {
		row := rowOf(rows, name)
		if !assert.NotNil(t, row, "put %s into the table of metrics of README.md or docs/*.md", name) {
			continue
		}
		named[row[0]] = true
		for _, label := range labels {
			assert.Contains(t, docs.Quoted(row[1]), label, "a label of %s", name)
		}
	}
	for _, row := range rows {
		assert.True(t, named[row[0]], "the documentation's %s is no metric: take it out, or name it as it is", row[0])
	}
}

// rowOf finds a metric's row; "`a_`, `b_` and `c_seconds`" names three metrics with one ending.
func rowOf(rows []docs.Row, name string) docs.Row {
	for _, row := range rows {
		names := docs.Quoted(row[0])
		for _, is := range names {
			ending, open := strings.CutPrefix(name, is)
			if is == name || open && strings.HasSuffix(is, "_") && strings.HasSuffix(names[len(names)-1], "_"+ending) {
				return row
			}
		}
	}
	return nil
}
