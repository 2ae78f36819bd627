package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/recovery"
	"etcd-wrapper/statemachine"
)

// version is set by the Makefile. version is empty if the program was installed with go install.
var version string

func wrapperVersion() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(version, info)
}

// versionOf returns the version that the Makefile set, or otherwise the version of the main module, which go install
// and go build take from the tag or commit.
func versionOf(set string, info *debug.BuildInfo) string {
	if set == "" && info != nil {
		set = info.Main.Version
	}
	return cmp.Or(set, "unknown")
}

type versionCommand struct {
	output `embed:""`
}

// versions is the output of `version -o json`.
type versions struct {
	Wrapper  string `json:"wrapper"`
	Etcd     string `json:"etcd"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (c *versionCommand) execute(s streams) exitcode.Code {
	all := versions{wrapperVersion(), dataversion.Embedded, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	text := fmt.Sprintf("etcd-wrapper %s\netcd %s\n%s %s\n", all.Wrapper, all.Etcd, all.Go, all.Platform)
	_ = c.print(s.out, text, all) // fails if standard output is closed
	return exitcode.Clean
}

// A drawing is the value of --dump-fsm: the text of the diagram that the flag names.
type drawing string

// IsBool allows the flag to be used without a value.
func (*drawing) IsBool() bool { return true }

// Decode implements kong.MapperValue. kong prefixes the error with the name of the flag.
func (d *drawing) Decode(line *kong.DecodeContext) error {
	value := "lifecycle.dot"
	if line.Scan.Peek().Type == kong.FlagValueToken {
		value = line.Scan.Pop().String()
	}
	name, format, _ := strings.Cut(value, ".")
	if machines[name] == nil || formats[format] == nil {
		return fmt.Errorf("unknown diagram %q: must be lifecycle, recovery or backup, followed by .dot, .svg, .mermaid or .json", value)
	}
	*d = drawing(formats[format](machines[name]))
	return nil
}

func (d drawing) execute(s streams) exitcode.Code { return s.print(string(d)) }

// machines maps each name that --dump-fsm accepts to a state machine.
var machines = map[string]*statemachine.Diagram{"lifecycle": &lifecycle.Diagram, "recovery": &recovery.Diagram, "backup": &writer.Diagram}

var formats = map[string]func(*statemachine.Diagram) string{
	"dot": (*statemachine.Diagram).DOT, "svg": (*statemachine.Diagram).SVG,
	"mermaid": (*statemachine.Diagram).Mermaid, "json": (*statemachine.Diagram).JSON,
}

var (
	//go:embed completion/etcd-wrapper.bash
	bashCompletion string
	//go:embed completion/_etcd-wrapper
	zshCompletion string
	//go:embed completion/etcd-wrapper.fish
	fishCompletion string
)

// completionCommand prints the completion script for a shell. The script runs completeCommand each time a word is
// completed.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

func (c *completionCommand) execute(s streams) exitcode.Code {
	scripts := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	return s.print(scripts[c.Shell])
}

// completeCommand prints the candidates for the last word, one per line: the word, a tab and the help text. The
// completion scripts run it.
type completeCommand struct {
	Words []string `arg:"" optional:""`
}

func (c *completeCommand) execute(s streams) exitcode.Code {
	parser, err := commandline.New(&commandLine{}, io.Discard)
	if err != nil || len(c.Words) == 0 {
		return exitcode.NotTold // an error message would garble the command line being completed
	}
	if len(c.Words) > 1 && (c.Words[0] == "etcdctl" || c.Words[0] == "etcdutl") {
		completeTool(c.Words[0], c.Words[1:], s.out)
		return exitcode.Clean
	}
	for _, candidate := range commandline.Complete(parser, c.Words) {
		_, _ = fmt.Fprintf(s.out, "%s\t%s\n", candidate.Word, candidate.Help)
	}
	return exitcode.Clean
}

// manCommand prints the man page.
type manCommand struct{}

func (*manCommand) execute(s streams) exitcode.Code {
	parser, err := commandline.New(&commandLine{}, io.Discard)
	if err != nil {
		return s.logError("cannot generate the manual page", err, exitcode.NotTold)
	}
	return s.print(commandline.ManPage(parser.Model, wrapperVersion()))
}
