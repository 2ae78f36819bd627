package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/backup/store/locate"
)

var update = flag.Bool("update", false, "update the table of values in docs/deploy.md")

// A schema is an entry in values.schema.json.
type schema struct {
	Description, Pattern string
	Properties           map[string]schema
}

// values returns the names of the chart's values in the order of values.yaml, their defaults, and their schema
// entries.
func values(t *testing.T) (names []string, defaults map[string]any, schemas map[string]schema) {
	t.Helper()
	var all schema
	require.NoError(t, json.Unmarshal([]byte(read(t, "chart/values.schema.json")), &all))
	var given document
	content := read(t, "chart/values.yaml")
	require.NoError(t, yaml.UnmarshalStrict([]byte(content), &given))
	defaults, schemas = map[string]any{}, map[string]schema{}
	var collect func(prefix string, of schema, given document)
	collect = func(prefix string, of schema, given document) {
		assert.ElementsMatch(t, slices.Collect(maps.Keys(of.Properties)), slices.Collect(maps.Keys(given)), "%q: values.yaml and values.schema.json must have the same keys", prefix)
		for _, key := range slices.Sorted(maps.Keys(of.Properties)) {
			value := of.Properties[key]
			assert.NotEmpty(t, value.Description, prefix+key)
			if value.Properties != nil {
				inner, _ := given[key].(document)
				collect(prefix+key+".", value, inner)
				continue
			}
			names = append(names, prefix+key)
			defaults[prefix+key], schemas[prefix+key] = given[key], value
		}
	}
	collect("", all, given)
	top := func(name string) int { // returns the offset of a top-level key
		first, _, _ := strings.Cut(name, ".")
		return strings.Index("\n"+content, "\n"+first+":")
	}
	slices.SortStableFunc(names, func(a, b string) int { return top(a) - top(b) })
	return names, defaults, schemas
}

func TestChart_acceptsEveryStore(t *testing.T) {
	_, _, schemas := values(t)
	forms, _ := locate.Forms()
	for _, form := range forms {
		assert.Regexp(t, schemas["store.url"].Pattern, form, "add the scheme to store.url in chart/values.schema.json and, if necessary, to _checks.tpl")
	}
}

func TestChart_valuesAreDocumented(t *testing.T) {
	const page, begin, end = "../docs/deploy.md", "<!-- values -->\n", "<!-- /values -->\n"
	names, defaults, schemas := values(t)
	table := "| value | default | what it is |\n|---|---|---|\n"
	for _, name := range names {
		text, err := json.Marshal(defaults[name])
		require.NoError(t, err)
		value := strings.Trim(string(text), `"`)
		if value != "" {
			value = "`" + value + "`"
		}
		table += fmt.Sprintf("| `%s` | %s | %s |\n", name, value, schemas[name].Description)
	}
	before, rest, ok := strings.Cut(read(t, page), begin)
	require.True(t, ok)
	current, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+table+end+after), 0o644))
		current = table
	}
	assert.Equal(t, table, current, `the table of values is out of date; run "go test ./deploy -update"`)
}
