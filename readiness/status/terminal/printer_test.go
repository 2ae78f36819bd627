package terminal

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func document() status.Document {
	now := time.Now()
	return status.Document{
		State: "Wait", Since: now.Add(-90 * time.Second), Reason: "the sidecar validates", Attempt: 2, NextRetry: now.Add(time.Minute),
		LastError:  &status.Error{At: now, Class: "sidecar", Message: "no answer"},
		Validation: &status.Validation{Mode: "full", Reason: "no record"}, SidecarWord: "Progress", MemberID: "abc", LastExit: "crash",
		Versions: status.Versions{Wrapper: "v1", Etcd: "3.6", Go: "go1"},
		Checks:   []status.Check{{Name: "quorum", Status: "failed", Reason: "no leader"}, {Name: "space", Status: "ok"}},
		Certificates: []status.Certificate{
			{Name: "etcd_server", Path: "/a", Expires: now.Add(-time.Hour)},
			{Name: "etcd_peer", Path: "/b", Expires: now.Add(time.Hour)},
			{Name: "sidecar_ca", Path: "/c", Expires: now.Add(1000 * time.Hour)},
		},
		Transitions: []status.Transition{
			{At: now.Add(-time.Second), From: "Query", To: "Wait", Reason: "it validates", Times: 1, After: 0.0042},
			{At: now, From: "Query", To: "Query", Reason: "again", Times: 7, After: 61},
		},
	}
}

func TestADocumentIsPrintedInFull(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, NewPrinter(&out).Print(document()))
	for _, line := range []string{
		`^Wait, not ready$`, `^the sidecar validates$`, `^since +\S+ \(1m30s\)$`, `^attempt +2$`, `^next step +within (1m0s|59s)$`,
		`^trouble +\S+ sidecar: no answer$`, `^validation +full: no record$`, `^sidecar said +Progress$`, `^last exit +crash$`,
		`^member +abc$`, `^certificate +etcd_server has expired at \S+: /a$`, `^certificate +etcd_peer expires at \S+: /b$`,
		`^versions +wrapper v1, etcd 3.6, go1$`, `^  failed    quorum  no leader$`, `^  ok        space  $`,
		`^  \S+  Query → Wait +after 4ms +it validates$`, `^  \S+  Query stays ×7 +after 1m1s +again$`,
	} {
		assert.Regexp(t, "(?m)"+line, out.String())
	}
	assert.NotContains(t, out.String(), "/c", "a certificate that is good for long is not worth a line")
	assert.NotContains(t, out.String(), "\x1b", "no colour but on a terminal")
}

func TestTroubleIsOverWhenItIsOver(t *testing.T) {
	var out bytes.Buffer
	told := document()
	told.LastError.Times, told.LastError.Since, told.LastError.Ended = 7, told.LastError.At.Add(-time.Hour), told.LastError.At
	told.LastExit, told.LastExitReason = "failed", "status 70, port taken"
	for i := range told.Checks {
		told.Checks[i] = status.Check{Name: told.Checks[i].Name, Status: "failed", Reason: "etcd does not run"}
	}
	require.NoError(t, NewPrinter(&out).Print(told))
	assert.Regexp(t, `(?m)^last trouble +\S+, 7 times since \S+, over since \S+, sidecar: no answer$`, out.String())
	assert.Regexp(t, `(?m)^last exit +failed: status 70, port taken$`, out.String())
	assert.Equal(t, 1, strings.Count(out.String(), "etcd does not run"))
	assert.Contains(t, out.String(), "  failed    all: etcd does not run\n")
}

func TestChangesArePrintedOnce(t *testing.T) {
	var out bytes.Buffer
	printer, told := NewPrinter(&out), document()
	require.NoError(t, printer.PrintChanges(told))
	require.NoError(t, printer.PrintChanges(told))
	told.Ready = true
	told.Transitions = append(told.Transitions, status.Transition{At: time.Now().Add(time.Second), From: "Wait", To: "Query"})
	require.NoError(t, printer.PrintChanges(told))
	require.NoError(t, printer.PrintChanges(told))
	for _, line := range []string{"Query → Wait", "Query stays", "Wait → Query", "  ready\n"} {
		assert.Equal(t, 1, strings.Count(out.String(), line), "%s in\n%s", line, out.String())
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	assert.False(t, Colourful(&bytes.Buffer{}))
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	assert.False(t, Colourful(file))
	var out bytes.Buffer
	require.NoError(t, (&Printer{to: &out, colour: true}).Print(document()))
	assert.Contains(t, out.String(), "\x1b[31mnot ready\x1b[0m")
}
