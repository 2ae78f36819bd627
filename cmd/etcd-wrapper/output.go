package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/logstream"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status"
)

// streams holds the output streams of a command, and the settings that determine the format of its output.
type streams struct {
	out      io.Writer
	log      io.Writer
	terminal bool   // whether log is a terminal
	shown    bool   // whether out is a terminal
	colour   bool   // whether the log may use colors
	json     bool   // whether errors are logged as JSON
	command  string // command name for error messages; empty for the backup commands
}

// print prints a result as plain text and returns the exit status.
func (s streams) print(text string) exitcode.Code {
	if _, err := io.WriteString(s.out, text); err != nil {
		return s.logError("cannot print the result", err, exitcode.NotTold)
	}
	return exitcode.Clean
}

// logError logs an error and returns the exit status.
func (s streams) logError(message string, err error, status exitcode.Code) exitcode.Code {
	s.report(zerolog.ErrorLevel, message, err)
	return status
}

// report logs an error as a sentence, or as a line of JSON if s.json is set.
func (s streams) report(level zerolog.Level, message string, err error) {
	if s.json {
		log := logstream.New(s.log, zerolog.InfoLevel)
		log.WithLevel(level).Err(err).Msg(message)
		return
	}
	_, _ = fmt.Fprintf(s.log, "etcd-wrapper: %s: %s\n", printable.Line(message), printable.Line(err.Error())) // there is nowhere else to report an error
}

func (s streams) failed(err error, status exitcode.Code) exitcode.Code {
	return s.logError("the "+cmp.Or(s.command, "backup")+" command failed", err, status)
}

// meter returns a meter that shows progress if the log is written to a terminal.
func (s streams) meter() *backups.Meter {
	if !s.terminal {
		return backups.NewMeter(nil)
	}
	return backups.NewMeter(s.log)
}

// output holds the flag that selects the output format.
type output struct {
	Output string `name:"output" env:"-" short:"o" enum:"text,json" default:"text" help:"Output format: text or json. With json, errors are also printed as JSON."`
}

func (o output) json() bool { return o.Output == "json" }

// print prints a result as text or as JSON.
func (o output) print(to io.Writer, text string, document any) error {
	if o.json() {
		return backups.JSON(to, document)
	}
	_, err := io.WriteString(to, text)
	return err
}

// A document is the result of a command.
type document interface{ Print(to io.Writer) error }

// finish prints the result of a command, logs its error and returns the exit status. result and err may be nil.
func (s streams) finish(options output, result document, err error) exitcode.Code {
	if result != nil {
		print := result.Print
		if options.json() {
			print = func(to io.Writer) error { return backups.JSON(to, result) }
		}
		if failed := print(s.out); failed != nil && err == nil {
			err = failed
		}
	}
	if err != nil {
		return s.failed(err, backupStatus(err))
	}
	return exitcode.Clean
}

// errInterrupted reports that the command was interrupted by a signal.
var errInterrupted = errors.New("interrupted; temporary files were removed")

// backupStatus returns the exit status for an error from a backup command. Damaged backups have an exit status of
// their own, because they cannot be repaired locally.
func backupStatus(err error) exitcode.Code {
	if store.FailureOf(err) != "" {
		return exitcode.StoreAway
	}
	for _, known := range []struct {
		err    error
		status exitcode.Code
	}{
		{archive.ErrNotKept, exitcode.NotKept},
		{backups.ErrNoKey, exitcode.NotKept},
		{backups.ErrEmpty, exitcode.NotKept},
		{backups.ErrNotCopy, exitcode.Usage},
		{backups.ErrExists, exitcode.Usage},
		{backups.ErrNoPolicy, exitcode.Usage},
		{fs.ErrExist, exitcode.Usage},
		{format.ErrNoIdentity, exitcode.Usage},
		{backups.ErrUnsafe, exitcode.ChecksFailed},
		{status.ErrNoAnswer, exitcode.NoAnswer},
		{backups.ErrNoBackups, exitcode.NoAnswer},
		{backups.ErrIncomplete, exitcode.BackupFailed},
		{backups.ErrNotVerified, exitcode.BackupFailed},
		{restore.ErrDamaged, exitcode.BackupFailed},
		{sidecarstore.ErrConflict, exitcode.BackupFailed},
	} {
		if errors.Is(err, known.err) {
			return known.status
		}
	}
	if archive.Unusable(err) {
		return exitcode.BackupFailed
	}
	return exitcode.StatusOf(err, exitcode.ToolFailed)
}
