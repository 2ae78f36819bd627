// Command etcd-wrapper is the entrypoint of an etcd pod. etcd-wrapper makes sure that the data directory is safe to
// open, runs an embedded etcd, and records for the next start how etcd was stopped.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/logstream"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/readiness/status/terminal"
)

func main() {
	log, flush := logstream.NeverWait(os.Stderr)
	s := streams{out: os.Stdout, log: log, terminal: isatty.IsTerminal(os.Stderr.Fd()), shown: isatty.IsTerminal(os.Stdout.Fd()), colour: terminal.HasColour(os.Stderr)}
	status := run(os.Args[1:], s)
	flush()
	os.Exit(int(status))
}

// A command is selected by the command line. execute runs it and returns the exit status of the process.
type command interface {
	execute(s streams) exitcode.Code
}

// commandLine is the command line that kong parses. Flags that configure a pod can also be set by an environment
// variable, whose name is ETCD_WRAPPER_ followed by the name of the flag in capitals. All other flags have the tag
// env:"-".
type commandLine struct {
	ShowVersion bool    `name:"version" env:"-" help:"Print the versions of the wrapper, etcd and Go."`
	DumpFSM     drawing `name:"dump-fsm" env:"-" help:"Print the lifecycle's state machine in Graphviz format and exit. --dump-fsm=MACHINE.FORMAT prints lifecycle, recovery or backup as dot, svg, mermaid or json."`

	Start        startCommand        `cmd:"" name:"start-etcd" help:"Run an etcd member."`
	Status       statusCommand       `cmd:"" name:"status" help:"Show the status of the wrapper on this host. Exits 0 if it is ready."`
	Defrag       defragCommand       `cmd:"" name:"defrag" help:"Defragment the database of the member on this host."`
	Backup       backupCommand       `cmd:"" name:"backup" help:"List, create, test, export, copy and prune backups."`
	Restore      restoreCommand      `cmd:"" name:"restore" help:"Restore a data directory from a backup or snapshot."`
	Etcdctl      etcdctlCommand      `cmd:"" name:"etcdctl" passthrough:"" help:"Run etcd's client, by default with the endpoint and certificates of this member."`
	Etcdutl      etcdutlCommand      `cmd:"" name:"etcdutl" passthrough:"" help:"Run etcd's tool for snapshots and data directories."`
	Version      versionCommand      `cmd:"" help:"Print the versions of the wrapper, etcd and Go."`
	Completion   completionCommand   `cmd:"" name:"completion" help:"Print the completion script for a shell."`
	Man          manCommand          `cmd:"" name:"man" help:"Print the manual page."`
	Verify       verifyCommand       `cmd:"" name:"verify-data" help:"Validate the data directory of a stopped etcd member without changing it."`
	Inspect      inspectCommand      `cmd:"" name:"inspect-database" hidden:"" help:"Open a database to check whether that crashes the process. Restores run this command as a child process."`
	VerifyBackup verifyBackupCommand `cmd:"" name:"verify-backup" hidden:"" help:"Test whether a backup can be restored. backup verify and start-etcd run this command as a child process."`
	Complete     completeCommand     `cmd:"" name:"__complete" hidden:"" passthrough:"" help:"Complete a word. The shells' completion scripts run this command."`
	None         noCommand           `cmd:"" name:"none" hidden:"" default:"1"`
}

func run(args []string, s streams) exitcode.Code {
	if forgotten := commandline.ForgetServices(); len(forgotten) > 0 && slices.Contains(args, "start-etcd") {
		log := logstream.New(s.log, zerolog.InfoLevel)
		log.Info().Strs("variables", forgotten).Msg("ignoring environment variables that Kubernetes created for a Service")
	}
	chosen, err := parse(args, s.out)
	if done := commandline.Done(0); errors.As(err, &done) {
		return exitcode.Code(done)
	}
	if err != nil {
		s.json = !s.terminal && slices.Contains(args, "start-etcd")
		defer writeUsageMessage(args, err)
		return s.logError("invalid command line (see etcd-wrapper --help)", err, exitcode.Usage)
	}
	if c, hasFormat := chosen.(interface{ json() bool }); hasFormat {
		s.json = c.json()
	}
	return chosen.execute(s)
}

func parse(args []string, out io.Writer) (command, error) {
	var line commandLine
	chosen, err := commandline.Parse(&line, args, out)
	if err != nil {
		return nil, err
	}
	if line.ShowVersion {
		return &versionCommand{}, nil
	}
	if line.DumpFSM != "" {
		return line.DumpFSM, nil
	}
	selected, ok := chosen.(command)
	if !ok {
		return nil, fmt.Errorf("%T is not a command", chosen)
	}
	return selected, nil
}

// writeUsageMessage writes the termination message if the command line of a start-etcd container is invalid.
func writeUsageMessage(args []string, cause error) {
	if !slices.Contains(args, "start-etcd") {
		return
	}
	path := cmp.Or(terminationPath(args), os.Getenv("ETCD_WRAPPER_TERMINATION_MESSAGE_PATH"), commandline.DefaultTerminationPath)
	_ = exitcode.WriteMessage(path, fmt.Sprintf("%s: %s\n", exitcode.Usage, cause)) // the error has already been logged
}

// terminationPath returns the path of the termination message as given on a command line that could not be parsed, or
// an empty string.
func terminationPath(args []string) string {
	for _, arg := range args {
		if name, path, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); name == "termination-message-path" {
			return path
		}
	}
	return ""
}

// noCommand prints the help if the user has not specified a command.
type noCommand struct{}

func (*noCommand) execute(s streams) exitcode.Code {
	var usage bytes.Buffer
	_, _ = parse([]string{"--help"}, &usage) // the error is commandline.Done
	_, _ = s.log.Write(usage.Bytes())        // there is nowhere else to report an error
	return exitcode.Usage
}
