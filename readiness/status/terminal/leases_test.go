package terminal

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func TestLeasesAreToldWithWhatTheySayAndWhatIsWrong(t *testing.T) {
	now, told := time.Now(), document()
	told.Leases = []status.Lease{
		{Kind: "member", Name: "etcd-main-0", Holder: "a:b:Leader", Renewed: now.Add(-3 * time.Second)},
		{Kind: "full_snapshot", Name: "etcd-main-full-snap", Trouble: &status.LeaseTrouble{
			Since: now.Add(-time.Minute), Times: 4, Message: "the API server answers 500 Internal Server Error", NextTry: now.Add(10 * time.Second),
		}},
	}
	var out bytes.Buffer
	require.NoError(t, NewPrinter(&out).Print(told))
	for _, line := range []string{
		`^leases +etcd-main-0 says a:b:Leader, renewed ` + at + `, 3s ago$`,
		`^ +etcd-main-full-snap, not renewed yet$`,
		`^lease trouble +the API server answers 500 Internal Server Error$`,
		`^ +since ` + at + `, 1m0s ago, 4 times, next try within (9|10)s$`,
	} {
		assert.Regexp(t, "(?m)"+line, out.String())
	}
}
