package main

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/recovery"
)

type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("by the test") }

func TestRun_panicsPropagate(t *testing.T) {
	assert.PanicsWithValue(t, "by the test", func() { run([]string{"--help"}, streams{out: panicking{}, log: panicking{}}) })
}

func TestHelp_exitStatus(t *testing.T) {
	var out, log bytes.Buffer
	assert.Equal(t, exitcode.Clean, run([]string{"start-etcd", "--help"}, streams{out: &out, log: &log}))
	assert.Contains(t, out.String(), "--volume-dir")
	assert.Empty(t, log.String())
}

// runCommand runs a command and returns its output, log and exit status.
func runCommand(t *testing.T, atTerminal bool, args ...string) (out, log string, status exitcode.Code) {
	t.Helper()
	var printed, logged bytes.Buffer
	status = run(args, streams{out: &printed, log: &logged, terminal: atTerminal})
	return printed.String(), logged.String(), status
}

func TestRun_withoutArguments(t *testing.T) {
	out, log, status := runCommand(t, false)
	assert.Equal(t, exitcode.Usage, status)
	assert.Empty(t, out)
	assert.Contains(t, log, "Usage: etcd-wrapper <command>")
	assert.Contains(t, log, "start-etcd")
}

func TestHelpAndVersion(t *testing.T) {
	for _, c := range []struct {
		args []string
		has  string
	}{
		{[]string{"help"}, "--dump-fsm"},
		{[]string{"--help"}, "Usage: etcd-wrapper <command>"},
		{[]string{"-h"}, "Commands:"},
		{[]string{"help", "start-etcd"}, "Usage: etcd-wrapper start-etcd"},
		{[]string{"start-etcd", "--help"}, "--volume-dir"},
		{[]string{"help", "status"}, "  75   not ready"},
		{[]string{"--version"}, "etcd 3.6."},
		{[]string{"version"}, "etcd 3.6."},
	} {
		out, log, status := runCommand(t, false, c.args...)
		assert.Equal(t, exitcode.Clean, status, c.args)
		assert.Contains(t, out, c.has, c.args)
		assert.Empty(t, log, c.args)
	}
	_, _, status := runCommand(t, false, "help", "nonsense")
	assert.Equal(t, exitcode.Usage, status)
}

func TestDumpFSM(t *testing.T) {
	for value, want := range map[string]string{
		"": lifecycle.Diagram.DOT(), "=lifecycle.dot": lifecycle.Diagram.DOT(), "=lifecycle.json": lifecycle.Diagram.JSON(),
		"=recovery.svg": recovery.Diagram.SVG(), "=backup.mermaid": writer.Diagram.Mermaid(),
	} {
		out, log, status := runCommand(t, false, "--dump-fsm"+value)
		assert.Equal(t, want, out, value)
		assert.Equal(t, exitcode.Clean, status, log)
	}
	for _, value := range []string{"=lifecycle.png", "=member.dot", "=lifecycle", "="} {
		out, log, status := runCommand(t, false, "--dump-fsm"+value)
		assert.Equal(t, exitcode.Usage, status, value)
		assert.Contains(t, log, "--dump-fsm: ", value)
		assert.Empty(t, out)
	}
}

func TestHelp_ofACommand(t *testing.T) {
	out, _, _ := runCommand(t, false, "help", "start-etcd")
	assert.NotContains(t, out, "--dump-fsm")
	assert.NotContains(t, out, "$ETCD_WRAPPER", "variables are described once, not for each flag")
	assert.Contains(t, out, "The sidecar\n", "flags are grouped")
	for _, code := range exitcode.Codes() {
		assert.Contains(t, out, code.String())
	}
}

// Errors must be printed safely, because they may contain an unknown server's certificate or a URL with a password.
func TestReport_hidesPasswordsAndControlCharacters(t *testing.T) {
	for _, json := range []bool{false, true} {
		var out bytes.Buffer
		streams{log: &out, json: json}.report(zerolog.WarnLevel, "certificate of \x1b]0;title\a", errors.New("http://user:hunter2@etcd:2379 \u009b31m\nnext"))
		for _, harm := range []string{"\x1b", "\a", "\u009b", "hunter2"} {
			assert.NotContains(t, out.String(), harm)
		}
		assert.Contains(t, out.String(), "redacted@etcd:2379")
		assert.Equal(t, 1, strings.Count(out.String(), "\n"))
	}
}

// In a pod, the log must be in JSON, because programs read it. The output of a command must be readable for users
// even without a terminal, for example in kubectl exec.
func TestErrors_sentencesOrJSON(t *testing.T) {
	for _, c := range []struct {
		atTerminal bool
		args       []string
		sentence   bool
	}{
		{true, []string{"start-etcd", "--nope"}, true},
		{false, []string{"start-etcd", "--nope"}, false},
		{false, []string{"status", "--nope"}, true},
		{false, []string{"--dump-fsm=lifecycle.png"}, true},
		{false, []string{"etcd-main"}, true},
		{false, []string{"status", "--port=1"}, true},
		{true, []string{"status", "--port=1", "-o", "json"}, false},
		{false, []string{"defrag", "--port=1", "-o", "json"}, false},
		{false, []string{"backup", "now", "--port=1"}, true},
		{false, []string{"backup", "now", "--port=1", "-o", "json"}, false},
	} {
		_, log, status := runCommand(t, c.atTerminal, c.args...)
		assert.NotEqual(t, exitcode.Clean, status, c.args)
		assert.Equal(t, c.sentence, strings.HasPrefix(log, "etcd-wrapper: "), "%v: %s", c.args, log)
		assert.Equal(t, !c.sentence, strings.HasPrefix(log, `{"level":"error"`), "%v: %s", c.args, log)
	}
}

func TestCommands_outputJSON(t *testing.T) {
	parser, err := commandline.New(&commandLine{}, &bytes.Buffer{})
	require.NoError(t, err)
	for _, command := range parser.Model.Leaves(true) {
		hasOutput := slices.ContainsFunc(command.Flags, func(f *kong.Flag) bool { return f.Name == "output" && f.Short == 'o' })
		excluded := command.Passthrough || slices.Contains([]string{"start-etcd", "completion", "man"}, command.Name)
		assert.Equal(t, !excluded, hasOutput, command.Name)
	}
	out, _, _ := runCommand(t, false, "version", "-o", "json")
	assert.Contains(t, out, `"etcd": "3.6.`)
}

func TestVersionOf(t *testing.T) {
	installed := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}
	assert.Equal(t, "v2.0.0", versionOf("v2.0.0", installed), "the Makefile's version")
	assert.Equal(t, "v1.2.3", versionOf("", installed), "go install")
	assert.Equal(t, "unknown", versionOf("", &debug.BuildInfo{}), "no version was recorded")
	assert.Equal(t, "unknown", versionOf("", nil), "the program has no build information")
}

// Every command with a port must reject an invalid one.
func TestCommands_wrapperPort(t *testing.T) {
	for _, command := range [][]string{{"start-etcd"}, {"status"}, {"defrag"}, {"backup", "list"}} {
		_, log, status := runCommand(t, true, append(command, "--etcd-wrapper-port=70000")...)
		assert.Equal(t, exitcode.Usage, status, command)
		assert.Contains(t, log, `--etcd-wrapper-port: "70000" is not a valid port`, command)
	}
}

func TestFlags_environmentVariables(t *testing.T) {
	parser, err := commandline.New(&commandLine{}, &bytes.Buffer{})
	require.NoError(t, err)
	for _, flag := range parser.Model.Flags {
		assert.Empty(t, flag.Envs, flag.Name)
	}
	for _, command := range parser.Model.Leaves(false) {
		for _, flag := range command.Flags {
			wanted := command.Name == "start-etcd" || flag.Name == "etcd-wrapper-port" || flag.Name == "volume-dir" || strings.HasPrefix(flag.Name, "backup-")
			assert.Equal(t, wanted, len(flag.Envs) == 1, `--%s of %s: a flag that does not configure a pod must have the tag env:"-"`, flag.Name, command.Name)
		}
	}
}

// If no wrapper is running, the status command must show how the last run ended.
func TestStatus_afterTheProcessEnded(t *testing.T) {
	volume := t.TempDir()
	_, log, status := runCommand(t, false, "status", "--port=1", "--volume-dir", volume)
	assert.Equal(t, exitcode.NoAnswer, status)
	assert.NotContains(t, log, "the last run")
	run := exitcode.LastRun{Began: time.Now()}
	require.NoError(t, run.Keep(filepath.Join(volume, "exit_code.last")))
	_, log, _ = runCommand(t, false, "status", "--port=1", "--volume-dir", volume)
	assert.Contains(t, log, "did not record")
	run.Ended, run.Status, run.Reason = time.Now(), exitcode.Crashed, "panic: by the test"
	require.NoError(t, run.Keep(filepath.Join(volume, "exit_code.last")))
	_, log, status = runCommand(t, false, "status", "--port=1", "--volume-dir", volume)
	assert.Contains(t, log, " with status 2: panic: by the test")
	assert.Equal(t, exitcode.NoAnswer, status)
}

func TestVerifyData_missingDirectory(t *testing.T) {
	dir := t.TempDir()
	_, log, status := runCommand(t, false, "verify-data", "--data-dir", filepath.Join(dir, "missing"))
	assert.Equal(t, exitcode.Usage, status)
	assert.Contains(t, log, "the data directory does not exist")
	out, _, status := runCommand(t, false, "verify-data", "--data-dir", dir)
	assert.Equal(t, exitcode.Clean, status)
	assert.Equal(t, dir+" is empty\n", out)
	out, _, _ = runCommand(t, false, "verify-data", "-o", "json", "--data-dir", dir)
	assert.Equal(t, `{"valid":true,"empty":true}`+"\n", out, "start-etcd reads a single line")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "member"), nil, 0o600))
	out, _, status = runCommand(t, false, "verify-data", "-o", "json", "--data-dir", dir)
	assert.Equal(t, exitcode.ToolFailed, status)
	assert.Contains(t, out, `"valid":false`)
}

func TestEndpoints_areDocumented(t *testing.T) {
	documented := docs.Named(docs.Table(t, "endpoint", "response"))
	served := slices.Concat(readiness.Patterns(), slices.Collect(maps.Keys((&startCommand{}).routes(&report.Report{}, metrics.New(), nil, zerolog.Nop()))))
	for i, pattern := range served {
		served[i] = strings.TrimSuffix(pattern, "{$}")
		assert.Contains(t, documented, served[i], "add it to the table of endpoints in README.md or docs/*.md")
	}
	for _, name := range documented {
		assert.Contains(t, served, name, "%s is documented but is not an endpoint: remove it or correct its name", name)
	}
}

func TestCommandsAndFlags_areDocumented(t *testing.T) {
	text := docs.Text(t)
	parser, err := commandline.New(&commandLine{}, io.Discard)
	require.NoError(t, err)
	for _, flag := range parser.Model.Flags[1:] { // skip --help
		assert.Contains(t, text, "--"+flag.Name)
	}
	for _, command := range parser.Model.Leaves(true) {
		assert.Contains(t, text, command.FullPath())
		for _, flag := range command.Flags {
			named := strings.Contains(text, "`--"+flag.Name) || flag.Short != 0 && strings.Contains(text, "`-"+string(flag.Short)+" ")
			assert.True(t, named, "explain --%s of %s in README.md or docs/*.md", flag.Name, command.Name)
		}
	}
}

func TestCommands_canExecute(t *testing.T) {
	parser, err := commandline.New(&commandLine{}, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(false) {
		assert.Implements(t, (*command)(nil), leaf.Target.Addr().Interface(), leaf.Name)
	}
}

func TestStores_areInHelpAndDocs(t *testing.T) {
	help, _, status := runCommand(t, false, "start-etcd", "--help")
	require.Equal(t, exitcode.Clean, status)
	help = strings.Join(strings.Fields(help), " ")
	forms, keys := locate.Forms()
	for _, key := range keys {
		forms = append(forms, key+"=")
	}
	pages := docs.Text(t)
	for _, word := range forms {
		assert.True(t, strings.Contains(help, word), "add %s to the help of --backup-store (cmd/commandline/start.go)", word)
		assert.True(t, strings.Contains(pages, "`"+word), "add %s in backquotes to the list of stores in docs/backups.md", word)
	}
}
