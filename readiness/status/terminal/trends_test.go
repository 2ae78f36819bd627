package terminal

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

var missing = float32(math.NaN())

func TestBarsOfASeries(t *testing.T) {
	assert.Equal(t, "▁▃ ▅█", sparkline(status.Points{0, 3, missing, 5, 7.5}))
	assert.Equal(t, "▁▁", sparkline(status.Points{0, 0}), "a series of zeros")
	for i := range 1000 {
		assert.Equal(t, "█", sparkline(status.Points{float32(i+1) / 1e6}), "the highest bar")
	}
	many := make(status.Points, 119)
	many[118] = 1
	assert.Equal(t, strings.Repeat("▁", 39)+"█", sparkline(many))
}

func TestTrendsAreALineEach(t *testing.T) {
	d := document()
	none := status.Points{missing, missing}
	d.Trends = &status.Trends{
		Interval: 5, Write: status.Points{.0012, .0345}, Read: none, Fsync: none, DBSize: status.Points{1 << 20, 3 << 29}, DBInUse: none,
		BackupLag: status.Points{70, missing}, Revisions: status.Points{1000, 12.34},
	}
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(d))
	for _, line := range []string{
		"the last 10s", "  writes      ▁█  34.5ms, max 34.5ms", "  database    ▁█  1.5 GiB, max 1.5 GiB", "  backup lag  █   1m10s, max 1m10s",
		"  revisions   █▁  12.3/s, max 1000/s",
	} {
		assert.Contains(t, strings.Split(unwrapped(t, &out), "\n"), line)
	}
	assert.NotContains(t, out.String(), "reads", "nothing was measured")
}

func TestTimelineIsPrinted(t *testing.T) {
	d := document()
	d.Timeline = []status.TimelineEvent{{At: d.Started, Kind: "leader", Health: "ok", Message: "main-1 leads"}, {At: d.Since, Kind: "problem", Health: "failed", Message: "sidecar: no answer"}}
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(d))
	assert.Regexp(t, `(?m)^timeline\n  `+at+`  main-1 leads\n  `+at+`  sidecar: no answer$`, out.String())

	out.Reset()
	printer := printerTo(&out)
	printer.colour = true
	require.NoError(t, printer.PrintChanges(d))
	require.NoError(t, printer.PrintChanges(d))
	assert.Equal(t, 1, strings.Count(out.String(), "main-1 leads"), out.String())
	assert.Contains(t, out.String(), "\x1b[31msidecar: no answer\x1b[0m\n")
}

func TestHeadlineAndTrendsStayBelowTheChanges(t *testing.T) {
	d := document()
	d.Pod = "etcd-main-0"
	var out bytes.Buffer
	printer := printerTo(&out)
	printer.live = true
	require.NoError(t, printer.PrintChanges(d))
	assert.True(t, strings.HasSuffix(out.String(), "again\n\netcd-main-0: Wait, not ready: no answer\n"), out.String())
	none := status.Points{missing}
	d.Trends = &status.Trends{Interval: 5, Write: status.Points{.001}, Read: none, Fsync: none, DBSize: none, DBInUse: none, BackupLag: none, Revisions: none}
	out.Reset()
	require.NoError(t, printer.PrintChanges(d))
	hours := "\nthe last 5s\n  writes  █  1ms, max 1ms\n"
	assert.Equal(t, "\x1b[2A\x1b[J\netcd-main-0: Wait, not ready: no answer\n"+hours, out.String())
	out.Reset()
	require.NoError(t, printer.PrintChanges(d))
	assert.Empty(t, out.String(), "nothing has changed")
	d.State, d.Ready, d.Checks = "Serving", true, nil
	require.NoError(t, printer.PrintChanges(d))
	assert.Regexp(t, `^\x1b\[5A\x1b\[J`+at+`  ready\n\netcd-main-0: Serving, ready\n`+hours+"$", out.String())
}
