// Command etcd-wrapper is the entrypoint of an etcd pod: it agrees with the backup-restore sidecar that the data
// directory is safe to open, runs an embedded etcd, and ends so that the next start knows the truth about this one.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/exitcode/printable"
)

func main() {
	log, flush := unhindered(os.Stderr)
	status := run(os.Args[1:], streams{out: os.Stdout, log: log})
	flush()
	os.Exit(int(status))
}

// streams are what a command writes to: results for its caller, and the JSON log.
type streams struct {
	out io.Writer
	log io.Writer
}

// command is one of the program's commands.
type command interface {
	execute(s streams) exitcode.Code
}

// cli is the command line. Every flag of a command has an environment variable, ETCD_WRAPPER_ and its name in capitals.
type cli struct {
	DumpFSM    bool   `name:"dump-fsm" env:"-" help:"Print the lifecycle's state machine and exit."`
	DumpFormat string `name:"dump-format" env:"-" enum:"dot,svg,mermaid,json" default:"dot" help:"Format of --dump-fsm: dot (Graphviz), svg, mermaid or json."`

	Start   startCommand   `cmd:"" name:"start-etcd" help:"Run an etcd member under the full lifecycle."`
	Status  statusCommand  `cmd:"" name:"status" help:"Tell how the wrapper on this host is; the exit status says whether it is ready."`
	Etcdctl etcdctlCommand `cmd:"" name:"etcdctl" passthrough:"" help:"etcd's own client; endpoint and certificates of this member are filled in unless given."`
	Etcdutl etcdutlCommand `cmd:"" name:"etcdutl" passthrough:"" help:"etcd's own tool for snapshots and data directories."`
	Version versionCommand `cmd:"" help:"Print the versions of the wrapper, etcd and Go."`
	Verify  verifyCommand  `cmd:"" name:"verify-data" hidden:"" help:"Validate a data directory; start-etcd --standalone runs it as a process of its own."`
	None    noCommand      `cmd:"" name:"none" hidden:"" default:"1"`
}

// exitRequest carries kong's wish to exit, after --help, to the one os.Exit.
type exitRequest struct{ status exitcode.Code }

func (exitRequest) Error() string { return "exit" }

func run(args []string, s streams) exitcode.Code {
	selected, err := parse(args, s)
	if request := (exitRequest{}); errors.As(err, &request) {
		return request.status
	}
	if err != nil {
		log := newLog(s.log, zerolog.InfoLevel)
		log.Error().Err(err).Msg("wrong command line; see etcd-wrapper --help")
		explainUsage(args, err)
		return exitcode.Usage
	}
	return selected.execute(s)
}

// explainUsage tells Kubernetes of a wrong command line, if it is the container's own and not that of a visitor. Where
// the message belongs is known only from the environment then.
func explainUsage(args []string, cause error) {
	if !slices.Contains(args, "start-etcd") {
		return
	}
	path := cmp.Or(os.Getenv("ETCD_WRAPPER_TERMINATION_MESSAGE_PATH"), defaultTerminationPath)
	_ = exitcode.Explain(path, fmt.Sprintf("%s: %s\n", exitcode.Usage, cause)) // the log has it
}

func parse(args []string, s streams) (selected command, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			request, ok := cause.(exitRequest)
			if !ok {
				panic(cause)
			}
			err = request
		}
	}()
	args = asGoReadsFlags(args)
	var flags cli
	parser, err := kong.New(&flags,
		kong.Name("etcd-wrapper"),
		kong.Description("The entrypoint of an etcd pod: validate, start, serve and stop etcd, visibly."),
		kong.Vars{"home": os.Getenv("HOME"), "termination": defaultTerminationPath},
		kong.DefaultEnvars("ETCD_WRAPPER"),
		kong.Writers(s.out, s.log),
		kong.Exit(func(code int) { panic(exitRequest{exitcode.Code(code)}) }),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot build the command line: %w", err)
	}
	context, err := parser.Parse(args)
	if err != nil {
		return nil, err
	}
	if flags.DumpFSM {
		return dumpCommand{format: flags.DumpFormat}, nil
	}
	chosen, ok := context.Selected().Target.Addr().Interface().(command)
	if !ok {
		return nil, fmt.Errorf("%s is no command", context.Command())
	}
	return chosen, nil
}

// newLog returns the one log stream: a JSON object a line.
func newLog(to io.Writer, level zerolog.Level) zerolog.Logger {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	return zerolog.New(printable.Log(to)).Level(level).With().Timestamp().Logger()
}
