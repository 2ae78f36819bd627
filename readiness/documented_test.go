package readiness

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

func TestEveryCheckIsDocumented(t *testing.T) {
	sentence := regexp.MustCompile(`(?s)The checks are (.*?)\.`).FindString(docs.Text(t))
	have := []string{lifecycleCheck(time.Now(), serving()).Name}
	for _, check := range checks {
		require.NotEmpty(t, check.name, "a new check is a new row of checks")
		have = append(have, check.name)
	}
	require.Equal(t, have, docs.Quoted(sentence),
		`list all checks, in their order, in the sentence "The checks are" of README.md or docs/*.md`)
}
