package terminal

import (
	"bytes"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// now is the current time in these tests, fixed so that ages are deterministic.
var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// printerTo returns a verbose Printer that uses now as the current time.
func printerTo(out *bytes.Buffer) *Printer {
	p := NewPrinter(out)
	p.now, p.Verbose = func() time.Time { return now }, true
	return p
}

func document() status.Document {
	return status.Document{
		Pod: "etcd-main-0", ReadySince: now.Add(-time.Hour), Started: now.Add(-2 * time.Hour),
		Member: state.Member{
			Name: "main-0", ClusterID: "cdf8", Leader: "91bc", Term: 7, DBSize: 3 << 29, DBInUse: 5 << 20, Quota: 2 << 30,
			Peers: []state.Peer{
				{ID: "abc", Name: "main-0", Active: true},
				{ID: "91bc", Name: "main-1", Active: true, Leader: true},
				{ID: "fd42", URLs: []string{"http://main-2:2380"}, Learner: true},
			},
		},
		State: "Wait", Since: now.Add(-90 * time.Second), Reason: "the sidecar validates", Attempt: 2, NextRetry: now.Add(time.Minute),
		LastError:  &status.Error{At: now.Add(-3 * time.Second), Class: "sidecar", Message: "no answer"},
		Validation: &status.Validation{Mode: "full", Reason: "no record"}, SidecarStatus: "Progress", MemberID: "abc", LastExit: "crash",
		Versions:    status.Versions{Wrapper: "v1", Etcd: "3.6", Go: "go1"},
		Checks:      []status.Check{{Name: "quorum", Status: "failed", Reason: "no leader"}, {Name: "space", Status: "ok"}},
		DataVersion: &state.DataVersion{Wanted: "3.5", Phase: "kept", Reason: "the cluster is at version 3.5"},
		Certificates: []status.Certificate{
			{Name: "etcd_server", Path: "/a", NotAfter: now.Add(-time.Hour)},
			{Name: "etcd_peer", Path: "/b", NotAfter: now.Add(time.Hour)},
			{Name: "sidecar_ca", Path: "/c", NotAfter: now.Add(1000 * time.Hour)},
		},
		ConfigWarnings: []string{"ignoring unknown key quota"},
		Transitions: []status.Transition{
			{At: now.Add(-time.Second), From: "Query", To: "Wait", Reason: "it validates", Count: 1, AfterSeconds: 0.0042},
			{At: now, From: "Query", To: "Query", Reason: "again", Count: 7, AfterSeconds: 61},
		},
	}
}

// continued matches the line break and the indentation of a continuation line.
var continued = regexp.MustCompile(`\n {12,}`)

// unwrapped checks that no line of the output is longer than 80 columns, and joins wrapped lines.
func unwrapped(t *testing.T, out *bytes.Buffer) string {
	t.Helper()
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, width(strings.TrimSuffix(line, "\n")), 80, line)
	}
	return continued.ReplaceAllString(out.String(), " ")
}

// at matches a time in the local time zone.
const at = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+`

func TestPrintShowsTheWholeDocument(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printerTo(&out).Print(document()))
	for _, line := range []string{
		`^etcd-main-0: Wait, not ready: no answer$`, `^the sidecar validates$`, `^since +` + at + `, 1m30s ago$`, `^attempt +2$`,
		`^not ready since +` + at + `, 1h0m0s ago$`, `^next step +within (1m0s|59s)$`,
		`^error +sidecar: no answer ` + at + `, 3s ago$`, `^validation +full: no record$`, `^sidecar +Progress$`, `^last exit +crash$`,
		`^member +main-0 \(abc\)$`, `^cluster +cdf8$`, `^leader +main-1 \(91bc\), term 7$`,
		`^database +1.5 GiB, 5.0 MiB in use, 75% of the quota of 2.0 GiB$`,
		`^data version +3.5 wanted, kept: the cluster is at version 3.5$`, `^peers +active   main-0 \(abc\) active   main-1 \(91bc\), leader missing  http://main-2:2380 \(fd42\), learner$`,
		`^certificate +etcd_server has expired, ` + at + `, 1h0m0s ago: /a$`, `^certificate +etcd_peer expires in (1h0m0s|59m59s), ` + at + `: /b$`,
		`^configuration +ignoring unknown key quota$`,
		`^process started +` + at + `, 2h0m0s ago$`,
		`^versions +wrapper v1, etcd 3.6, go1$`, `^  failed    quorum  no leader$`, `^  ok        space$`,
		`^  ` + at + `  Query → Wait after 4ms: it validates$`, `^  ` + at + `  Query stays ×7 after 1m1s: again$`,
	} {
		assert.Regexp(t, "(?m)"+line, unwrapped(t, &out))
	}
	assert.NotContains(t, out.String(), "/c", "certificates that do not expire soon are not printed")
	assert.NotContains(t, out.String(), "\x1b", "output that is not a terminal has no colours")
}

func TestPrintShowsAResolvedErrorAndOneReasonOfAllChecks(t *testing.T) {
	var out bytes.Buffer
	d := document()
	d.LastError.Count, d.LastError.Since, d.LastError.Ended = 7, d.LastError.At.Add(-time.Hour), d.LastError.At
	d.LastExit, d.LastExitReason = "failed", "status 70, port taken"
	for i := range d.Checks {
		d.Checks[i].Status, d.Checks[i].Reason = "failed", "etcd is not running"
	}
	require.NoError(t, printerTo(&out).Print(d))
	assert.Regexp(t, `(?m)^last error +sidecar: no answer 7 times since .+ ago, resolved .+ ago$`, unwrapped(t, &out))
	assert.Regexp(t, `(?m)^last exit +failed: status 70, port taken$`, out.String())
	assert.Equal(t, 1, strings.Count(out.String(), "etcd is not running"))
	assert.Contains(t, out.String(), "  failed    etcd is not running\n")
}

func TestStepShowsAReadinessChange(t *testing.T) {
	line := printerTo(&bytes.Buffer{}).step("", status.Transition{From: "Serving", To: "Serving", Event: "ready", Count: 1, AfterSeconds: 2})
	assert.Regexp(t, `^`+at+`  Serving: ready after 2s\n$`, line)
	line = printerTo(&bytes.Buffer{}).step("", status.Transition{From: "Serving", To: "Serving", Event: "not ready", Reason: "quorum: no leader", Count: 1, AfterSeconds: 60})
	assert.Regexp(t, `^`+at+`  Serving: not ready after 1m0s: quorum: no leader\n$`, line)
}

func TestChangesArePrintedOnce(t *testing.T) {
	var out bytes.Buffer
	printer, d := printerTo(&out), document()
	require.NoError(t, printer.PrintChanges(d))
	require.NoError(t, printer.PrintChanges(d))
	d.Ready = true
	d.Timeline = append(d.Timeline, status.TimelineEvent{At: now, Kind: kindReadiness, Health: status.HealthOK, Message: "ready"})
	d.Transitions = append(d.Transitions, status.Transition{At: now.Add(time.Second), From: "Wait", To: "Query"})
	require.NoError(t, printer.PrintChanges(d))
	require.NoError(t, printer.PrintChanges(d))
	for _, line := range []string{"Query → Wait", "Query stays", "Wait → Query", "  ready\n"} {
		assert.Equal(t, 1, strings.Count(out.String(), line), "%s in\n%s", line, out.String())
	}
}

func TestLateReadinessChangeIsPrinted(t *testing.T) {
	var out bytes.Buffer
	printer, d := printerTo(&out), document()
	d.Transitions = []status.Transition{{At: now, From: "Serving", To: "Terminating"}}
	require.NoError(t, printer.PrintChanges(d))
	d.Transitions = []status.Transition{
		{At: now.Add(-100 * time.Millisecond), From: "Serving", To: "Serving", Event: "not ready", Reason: "quorum: no leader"}, d.Transitions[0],
	}
	require.NoError(t, printer.PrintChanges(d))
	assert.Contains(t, out.String(), "quorum: no leader")
	assert.Equal(t, 1, strings.Count(out.String(), "Serving → Terminating"))
}

func TestLongReasonIsPrintedOnce(t *testing.T) {
	var out bytes.Buffer
	d := document()
	d.Reason = strings.Repeat("advice in many words; ", 10)
	d.Transitions = []status.Transition{{Reason: "a"}, {Reason: d.Reason}}
	require.NoError(t, printerTo(&out).Print(d))
	assert.Equal(t, 10, strings.Count(out.String(), "words;"), out.String())
	assert.Contains(t, out.String(), "see above")
}

func TestLeaderIsNone(t *testing.T) {
	assert.Equal(t, "none, term 3", leader(status.Document{Member: state.Member{ClusterID: "1", Term: 3}}))
	assert.Empty(t, leader(status.Document{}), "etcd is not running")
}

func TestReadinessChangeHasItsTime(t *testing.T) {
	var out bytes.Buffer
	d := document()
	d.Ready, d.ReadySince = true, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, printerTo(&out).PrintChanges(d))
	first, _, _ := strings.Cut(out.String(), "\n")
	assert.Equal(t, d.ReadySince.Local().Format("2006-01-02 15:04:05 MST")+"  ready", first, "the readiness change is printed before later changes")
}

func TestColoursOnlyOnTerminals(t *testing.T) {
	assert.False(t, HasColour(&bytes.Buffer{}))
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	assert.False(t, HasColour(file))
	var out bytes.Buffer
	printer := printerTo(&out)
	printer.colour = true
	require.NoError(t, printer.Print(document()))
	assert.Contains(t, out.String(), "\x1b[31m, not ready: no answer\x1b[0m")
	out.Reset()
	d := document()
	d.State, d.Ready = "Serving", true
	d.Checks = []status.Check{{Name: "space", Status: "degraded", Reason: "writes are rejected"}}
	require.NoError(t, printer.Print(d))
	assert.Contains(t, out.String(), "\x1b[33m, degraded: no space: writes are rejected\x1b[0m", "a degraded headline is yellow")
}

func TestPrintFitsOneScreenUnlessVerbose(t *testing.T) {
	d := document()
	d.State, d.Ready = "Serving", true
	d.Checks = []status.Check{{Name: "space", Status: "degraded", Reason: "writes are rejected"}}
	for range 12 {
		d.Timeline = append(d.Timeline, status.TimelineEvent{At: now, Kind: "leader", Health: "ok", Message: "main-1 leads"})
	}
	lines := func(verbose bool) (text string, count int) {
		var out bytes.Buffer
		p := printerTo(&out)
		p.Verbose = verbose
		require.NoError(t, p.Print(d))
		return out.String(), strings.Count(out.String(), "\n")
	}
	short, count := lines(false)
	assert.LessOrEqual(t, count, 24, short)
	loss := "the volume is empty; the cluster is restored to revision 1000000002 (2026-11-27T06:47:58Z) of generation 2 from " +
		"file:///srv/backups/of/the/cluster, whose backups end at revision 1000000002 of generation 2; nothing is known to be lost"
	d.Recovery = &status.Recovery{State: "Ready", Reason: "the restored data is installed", Loss: loss}
	d.Timeline[len(d.Timeline)-1] = status.TimelineEvent{At: now, Kind: "restore", Health: "ok", Message: loss}
	short, count = lines(false)
	assert.LessOrEqual(t, count, 24, short)
	assert.Equal(t, 1, strings.Count(short, "the volume is empty"), "the loss is printed only once")
	for _, want := range []string{"degraded: no space", "no space: see etcd-wrapper defrag, docs/", "database", "last exit"} {
		assert.Contains(t, short, want)
	}
	all, _ := lines(true)
	for _, extra := range []string{"versions", "checks", "latest steps"} {
		assert.NotContains(t, short, extra)
		assert.Contains(t, all, extra)
	}
}

func TestPrintUsesTheWidthOfTheTerminal(t *testing.T) {
	var out bytes.Buffer
	p := printerTo(&out)
	p.width = 120
	d := document()
	d.Reason = strings.Repeat("word ", 40)
	require.NoError(t, p.Print(d))
	assert.Contains(t, out.String(), strings.TrimSpace(strings.Repeat("word ", 24))+"\n")
}

func TestPrintChangesShowsAProgressBar(t *testing.T) {
	var out bytes.Buffer
	p := printerTo(&out)
	p.live = true
	d := document()
	d.Recovery = &status.Recovery{State: "Build", RestoredBytes: 1 << 20, TotalBytes: 2 << 20, RemainingSeconds: 3}
	require.NoError(t, p.PrintChanges(d))
	assert.Contains(t, out.String(), "  restore  ███████████████░░░░░░░░░░░░░░░   50% of 2.0 MiB, 3s left\n")
	out.Reset()
	d.Recovery.RestoredBytes = 2 << 20
	require.NoError(t, p.PrintChanges(d))
	assert.Contains(t, out.String(), "100% of 2.0 MiB")
	assert.Contains(t, out.String(), "\x1b[J", "the previous progress bar is overwritten")
}

var missing = float32(math.NaN())

func TestSparkline(t *testing.T) {
	assert.Equal(t, "▁▃ ▅█", sparkline(status.Points{0, 3, missing, 5, 7.5}))
	assert.Equal(t, "▁▁", sparkline(status.Points{0, 0}), "a series of zeros")
	for i := range 1000 {
		assert.Equal(t, "█", sparkline(status.Points{float32(i+1) / 1e6}), "the maximum has the highest bar")
	}
	many := make(status.Points, 119)
	many[118] = 1
	assert.Equal(t, strings.Repeat("▁", 39)+"█", sparkline(many))
}

func TestTrendsHaveOneLineEach(t *testing.T) {
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
	assert.NotContains(t, out.String(), "reads", "a series without points is not printed")
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
	trends := "\nthe last 5s\n  writes  █  1ms, max 1ms\n"
	assert.Equal(t, "\x1b[2A\x1b[J\netcd-main-0: Wait, not ready: no answer\n"+trends, out.String())
	out.Reset()
	require.NoError(t, printer.PrintChanges(d))
	assert.Empty(t, out.String(), "nothing is printed without a change")
	d.State, d.Ready, d.Checks = "Serving", true, nil
	require.NoError(t, printer.PrintChanges(d))
	assert.Regexp(t, `^\x1b\[5A\x1b\[J`+at+`  ready\n\netcd-main-0: Serving, ready\n`+trends+"$", out.String())
}
