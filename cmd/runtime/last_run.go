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

// A lastRun holds how the last run ended, and records how this run ends for the next one. The records are only
// informational: the validation mode depends on the exit record alone. All methods of lastRun are safe for concurrent
// use.
type lastRun struct {
	flags  *commandline.StartEtcd
	record *exitcode.Record
	crash  *exitcode.CrashNote
	log    zerolog.Logger
	busy   sync.WaitGroup

	mu   sync.Mutex
	last lastExit
	held bool // this process holds the volume's lock and may write the note
	run  exitcode.LastRun
}

// A lastExit describes how the last run on the volume ended.
type lastExit struct {
	class  string // value of status.Document.LastExit
	reason string
	loops  bool // the run ended before it served any requests, as in a crash loop
}

// newLastRun reads the records of the last run on the volume without changing anything.
func newLastRun(flags *commandline.StartEtcd, record *exitcode.Record, note *exitcode.CrashNote, log zerolog.Logger) *lastRun {
	l := &lastRun{flags: flags, record: record, crash: note, log: log, run: exitcode.LastRun{Began: time.Now()}}
	l.last = l.read()
	return l
}

// LastRunOn describes how the last run on a volume ended. It is shown to users if no wrapper is running. If the
// volume contains no record, LastRunOn returns an empty string.
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
		return fmt.Sprintf("the last run on %s started at %s and did not record its end: it is still running, or it was killed (SIGKILL, out of memory, power loss)", volumeDir, at(last.Began))
	default:
		return fmt.Sprintf("the last run on %s ended at %s with status %d: %s", volumeDir, at(last.Ended), int(last.Status), last.Reason)
	}
}

// read returns how the last run ended. If there is no record of its end, it may still be running.
func (l *lastRun) read() lastExit {
	last, err := exitcode.ReadLastRun(l.flags.LastRunPath())
	noted, orderly := err == nil, !last.Ended.IsZero()
	word, unclean := l.record.Read()
	crash := l.crash.PreviousReason()
	newExit := func(class, reason string) lastExit { return lastExit{class, reason, !last.Served} }
	switch {
	case orderly && last.Status == exitcode.Crashed, !orderly && crash != "":
		return newExit(status.ExitCrash, cmp.Or(crash, last.Reason))
	case orderly && last.Status != exitcode.Clean:
		return newExit(status.ExitFailed, fmt.Sprintf("status %d, %s", int(last.Status), last.Reason))
	case noted && !orderly:
		return newExit(status.ExitKilled, "the run did not record its end; possible causes are SIGKILL, out of memory, a node or power failure, and a full volume"+l.firstOf(last))
	case unclean == nil:
		return newExit(string(word), "")
	case noted && !last.Served: // the last run stopped before starting etcd, so the exit record is from a run before it
		return newExit(string(exitcode.Terminated), last.Reason)
	case nothingOn(l.flags.VolumeDir):
		return newExit(status.ExitNone, "")
	default:
		return newExit(status.ExitUnknown, "the volume has no record of the last run")
	}
}

// firstOf returns the reason of the first crash in a crash loop, for a last run that did not record its own reason,
// for example if the volume was full. firstOf returns an empty string if no first crash was recorded.
func (l *lastRun) firstOf(last exitcode.LastRun) string {
	first := l.crash.FirstReason(last.Began)
	if !last.Served {
		first = l.crash.FirstReason(time.Time{})
	}
	if first == "" {
		return ""
	}
	return "; the first crash of this crash loop: " + first
}

// ended returns how the last run ended.
func (l *lastRun) ended() lastExit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// markBlocked notes that another process holds the lock of the volume, so the last run may not have ended.
func (l *lastRun) markBlocked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = lastExit{class: status.ExitUnknown, reason: "the volume is locked by another process"}
}

// nothingOn reports whether the volume has never been used, ignoring entries that the file system itself creates.
func nothingOn(volume string) bool {
	entries, err := os.ReadDir(volume)
	entries = slices.DeleteFunc(entries, func(entry fs.DirEntry) bool { return entry.Name() == "lost+found" })
	return len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist))
}

// warn logs a warning if the last run crashed, failed or was killed.
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

// start reads how the last run ended, and records this run in the background. start must not be called until the
// volume is locked, but may be called more than once.
func (l *lastRun) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return
	}
	l.held, l.last = true, l.read()
	last, _ := exitcode.ReadLastRun(l.flags.LastRunPath()) // if there is an error, l.read has already handled it
	l.run.DataDir = last.DataDir
	l.warn(l.last)
	l.note(func(*exitcode.LastRun) {})
}

// recordServing records that this run is serving the data in dataDir.
func (l *lastRun) recordServing(dataDir string) {
	l.note(func(run *exitcode.LastRun) { run.Served, run.DataDir = true, dataDir })
}

// lost reports whether an earlier run served data from a data directory that is now empty.
func (l *lastRun) lost(dataDir string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.run.Lost(dataDir, func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist) || datadir.IsEmpty(dir)
	})
}

// end records how this run ended, and returns once the record is on disk.
func (l *lastRun) end(outcome lifecycle.Outcome) {
	l.note(func(run *exitcode.LastRun) {
		run.Ended, run.Status, run.Reason = time.Now(), outcome.Status, outcome.Reason
	})
	l.busy.Wait()
}

// note updates the note for the next run and writes it in the background.
func (l *lastRun) note(change func(*exitcode.LastRun)) {
	l.busy.Go(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.held {
			return
		}
		change(&l.run)
		if err := l.run.Keep(l.flags.LastRunPath()); err != nil {
			l.log.Debug().Err(err).Msg("cannot record how this run ended")
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
