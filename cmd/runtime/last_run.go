package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status"
)

// A lastRun holds what is known about the previous run, and what this run records for the next one. It informs users;
// only the exit record selects the validation mode. Its methods may be called from any goroutine.
type lastRun struct {
	flags  *commandline.StartEtcd
	record *exitcode.Record
	crash  *exitcode.CrashNote
	log    zerolog.Logger
	busy   sync.WaitGroup

	mu   sync.Mutex
	last lastExit
	held bool // this process holds the volume, and may write the note
	run  exitcode.LastRun
}

// A lastExit describes how the last run on a volume ended.
type lastExit struct {
	class  string // value of status.Document.LastExit
	reason string
	loops  bool // the run ended before it served
}

// newLastRun reads the records of the last run on the volume. It changes nothing.
func newLastRun(flags *commandline.StartEtcd, record *exitcode.Record, note *exitcode.CrashNote, log zerolog.Logger) *lastRun {
	l := &lastRun{flags: flags, record: record, crash: note, log: log, run: exitcode.LastRun{Began: time.Now()}}
	l.last = l.read()
	return l
}

// LastRunOn describes the last run on a volume for a user who finds no running process. It is empty if there is no
// note.
func LastRunOn(volumeDir string) string {
	flags := &commandline.StartEtcd{VolumeDir: volumeDir}
	last, err := exitcode.ReadLastRun(flags.LastRunPath())
	note := exitcode.NewCrashNote(flags.CrashNotePath())
	crash := cmp.Or(note.PreviousReason(), note.FirstReason(last.Began))
	at := func(when time.Time) string { return when.Local().Format(time.DateTime) }
	switch {
	case err != nil:
		return ""
	case last.Ended.IsZero() && crash != "":
		return fmt.Sprintf("the last run on %s started at %s and crashed: %s", volumeDir, at(last.Began), crash)
	case last.Ended.IsZero():
		return fmt.Sprintf("the last run on %s started at %s and recorded no end: it is still running, or it was killed (SIGKILL, out of memory, power loss)", volumeDir, at(last.Began))
	default:
		return fmt.Sprintf("the last run on %s ended at %s with %d: %s", volumeDir, at(last.Ended), int(last.Status), last.Reason)
	}
}

// read returns how the last run ended. A run that seems to have been killed may still be running.
func (l *lastRun) read() lastExit {
	last, err := exitcode.ReadLastRun(l.flags.LastRunPath())
	noted, orderly := err == nil, !last.Ended.IsZero()
	word, unclean := l.record.Read()
	crash := l.crash.PreviousReason()
	is := func(class, reason string) lastExit { return lastExit{class, reason, !last.Served} }
	switch {
	case orderly && last.Status == exitcode.Crashed, !orderly && crash != "":
		return is(status.ExitCrash, cmp.Or(crash, last.Reason))
	case orderly && last.Status != exitcode.Clean:
		return is(status.ExitFailed, fmt.Sprintf("status %d, %s", int(last.Status), last.Reason))
	case noted && !orderly:
		return is(status.ExitKilled, "it left no note of its end: SIGKILL, out of memory, a failed node or power supply, or a full volume"+l.firstOf(last))
	case unclean == nil:
		return is(string(word), "")
	case noted && !last.Served: // the record is from an earlier run, and a stop before etcd's start does not change it
		return is(string(exitcode.Terminated), last.Reason)
	case nothingOn(l.flags.VolumeDir):
		return is(status.ExitNone, "")
	default:
		return is(status.ExitUnknown, "no run has left a note on the volume")
	}
}

// firstOf returns the crash that started a crash loop, for a run that recorded no reason. If the volume is full, that
// is the last run that could be recorded.
func (l *lastRun) firstOf(last exitcode.LastRun) string {
	first := l.crash.FirstReason(last.Began)
	if !last.Served {
		first = l.crash.FirstReason(time.Time{})
	}
	if first == "" {
		return ""
	}
	return "; the first crash of this loop: " + first
}

// ended returns how the last run ended.
func (l *lastRun) ended() lastExit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// markBlocked records that another process holds the volume, so its run has not ended.
func (l *lastRun) markBlocked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = lastExit{class: status.ExitUnknown, reason: "another process holds the volume"}
}

// nothingOn reports whether a volume was never used. It ignores what file systems create themselves.
func nothingOn(volume string) bool {
	entries, err := os.ReadDir(volume)
	entries = slices.DeleteFunc(entries, func(entry fs.DirEntry) bool { return entry.Name() == "lost+found" })
	return len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist))
}

// warn logs an end of the last run that needs attention.
func (l *lastRun) warn(last lastExit) {
	message := map[string]string{
		status.ExitCrash:  "the last run on this volume crashed",
		status.ExitFailed: "the last run on this volume failed",
		status.ExitKilled: "the last run on this volume was killed",
	}[last.class]
	if message == "" {
		return
	}
	line := l.log.Warn().Str("reason", last.reason)
	if first := l.crash.FirstReason(time.Time{}); last.loops && first != "" && !strings.Contains(last.reason, first) {
		line = line.Str("first_crash", first)
	}
	line.Msg(message + ": " + last.reason)
}

// start reads how the last run ended, and records this one in the background. Call it when the volume is locked; it
// may be called again.
func (l *lastRun) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return
	}
	l.held, l.last = true, l.read()
	last, _ := exitcode.ReadLastRun(l.flags.LastRunPath()) // read reports any problem of the record
	l.run.DataDir = last.DataDir
	l.warn(l.last)
	l.note(func(*exitcode.LastRun) {})
}

// recordServing records that this run serves the data in a directory.
func (l *lastRun) recordServing(dataDir string) {
	l.note(func(run *exitcode.LastRun) { run.Served, run.DataDir = true, dataDir })
}

// lost reports whether an earlier run served data from a directory that is empty now.
func (l *lastRun) lost(dataDir string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.run.Lost(dataDir, func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist) || datadir.IsEmpty(dir)
	})
}

// end records how this run ends. It returns when the record is on disk.
func (l *lastRun) end(outcome lifecycle.Outcome) {
	l.note(func(run *exitcode.LastRun) {
		run.Ended, run.Status, run.Reason = time.Now(), outcome.Status, outcome.Reason
	})
	l.busy.Wait()
}

// note changes the note for the next run, and writes it in the background.
func (l *lastRun) note(change func(*exitcode.LastRun)) {
	l.busy.Go(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.held {
			return
		}
		change(&l.run)
		if err := l.run.Keep(l.flags.LastRunPath()); err != nil {
			l.log.Debug().Err(err).Msg("the next run will not know how this one ended")
		}
	})
}

// maxDump is the maximum size of a goroutine dump in bytes.
const maxDump = 1 << 20

// leaveDump writes a goroutine dump to the crash note.
func leaveDump(note *exitcode.CrashNote, outcome lifecycle.Outcome) error {
	dump := make([]byte, maxDump)
	dump = dump[:runtime.Stack(dump, true)]
	return note.Leave(fmt.Sprintf("%s: %s\n\n%s", outcome.Status, outcome.Reason, dump))
}
