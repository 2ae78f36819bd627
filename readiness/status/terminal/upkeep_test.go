package terminal

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func tended(t *testing.T, u *status.Upkeep) string {
	t.Helper()
	told := document()
	told.Upkeep = u
	var out bytes.Buffer
	require.NoError(t, NewPrinter(&out).Print(told))
	return out.String()
}

func TestADefragmentationIsToldWhileItRunsAndWhenItHasEnded(t *testing.T) {
	now := time.Now()
	out := tended(t, &status.Upkeep{Phase: "running", Reason: "etcd copies", Progress: 0.42})
	assert.Regexp(t, `(?m)^defragmentation +running \(42%\): etcd copies$`, out)
	assert.NotContains(t, out, "last defragmented")

	out = tended(t, &status.Upkeep{
		Phase:   "waiting",
		Reason:  "512 MiB of its 1.0 GiB are free, but somebody reads it",
		Last:    &status.Defragmentation{At: now.Add(-time.Minute), Took: 2.4, Origin: "threshold", Before: 1 << 30, After: 5 << 20},
		Readers: []status.DatabaseReader{{What: "the snapshot for 10.0.0.7:4031", Since: now.Add(-time.Hour)}},
	})
	for _, line := range []string{
		`^defragmentation +waiting: 512 MiB of its 1.0 GiB are free, but somebody reads it$`,
		`^last defragmented +by threshold, in 2s: 1.0 GiB are 5.0 MiB now, ` + at + `, 1m0s ago$`,
		`^being read by +the snapshot for 10.0.0.7:4031 since ` + at + `, 1h0m0s ago$`,
	} {
		assert.Regexp(t, "(?m)"+line, out)
	}

	out = tended(t, &status.Upkeep{Phase: "idle", Last: &status.Defragmentation{At: now, Origin: "client", Error: "no space left on device"}})
	assert.Regexp(t, `(?m)^last defragmented +not, by client: no space left on device, `, out)
	assert.NotContains(t, out, "\ndefragmentation", "nothing goes on")
	assert.NotContains(t, tended(t, nil), "defragment")
}
