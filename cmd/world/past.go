package world

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status"
)

// past is what this run knows of the one before it, and what it tells the one after it. It is for people: the choice of
// the validation mode is the exit record's alone.
type past struct {
	class  string // as status.Document.LastExit
	reason string
	loops  bool // no run has served since the first crash that is kept

	path string
	log  zerolog.Logger
	mu   sync.Mutex
	held bool // the volume is ours, and so is the note
	run  exitcode.LastRun
	busy sync.WaitGroup
}

// withoutAWord is the reason of an end that nobody could write one for.
const withoutAWord = "it ended without a word: killed (SIGKILL, out of memory), or the node or its power was lost"

// newPast looks at what the last run left on the volume. It changes nothing.
func newPast(flags *commandline.StartEtcd, record *exitcode.Record, note *exitcode.CrashNote, log zerolog.Logger) *past {
	p := &past{path: flags.LastRunPath(), log: log, run: exitcode.LastRun{Began: time.Now()}}
	last, err := exitcode.ReadLastRun(p.path)
	p.loops = !last.Served
	word, unclean := record.Read()
	crash := note.Previous()
	switch known := err == nil; {
	case known && !last.Ended.IsZero() && last.Status == exitcode.Crashed, crash != "" && last.Ended.IsZero():
		p.class, p.reason = status.ExitCrash, orElse(crash, last.Reason)
	case known && !last.Ended.IsZero() && last.Status != exitcode.Clean:
		p.class, p.reason = status.ExitFailed, fmt.Sprintf("status %d, %s", int(last.Status), last.Reason)
	case known && last.Ended.IsZero():
		p.class, p.reason = status.ExitKilled, withoutAWord
	case unclean == nil:
		p.class = string(word)
	case known && !last.Served:
		p.class, p.reason = string(exitcode.Terminated), last.Reason
	case nothingOn(flags.VolumeDir):
		p.class = status.ExitNone
	default:
		p.class, p.reason = status.ExitUnknown, "nobody has left a note of it on the volume"
	}
	p.tell(note.First())
	return p
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// nothingOn reports whether a volume has never been used. What file systems bring along does not count.
func nothingOn(volume string) bool {
	entries, err := os.ReadDir(volume)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return err == nil && (len(entries) == 0 || len(entries) == 1 && entries[0].Name() == "lost+found")
}

// tell logs an end that somebody should look at.
func (p *past) tell(first string) {
	message := map[string]string{
		status.ExitCrash:  "the last run on this volume crashed",
		status.ExitFailed: "the last run on this volume failed",
		status.ExitKilled: "the last run on this volume was killed",
	}[p.class]
	if message == "" {
		return
	}
	line := p.log.Warn().Str("reason", p.reason)
	if first != "" && first != p.reason && p.loops {
		line = line.Str("first_crash", first)
	}
	line.Msg(message + ": " + p.reason)
}

// begin notes that this run goes on, once the volume is held. The disk's time for that is not the start's.
func (p *past) begin() {
	p.mu.Lock()
	again := p.held
	p.held = true
	p.mu.Unlock()
	if !again {
		p.note(func(*exitcode.LastRun) {})
	}
}

// serves notes that this run came to serve.
func (p *past) serves() { p.note(func(run *exitcode.LastRun) { run.Served = true }) }

// end notes how this run ends, and returns when that is on the disk.
func (p *past) end(outcome lifecycle.Outcome) {
	p.note(func(run *exitcode.LastRun) {
		run.Ended, run.Status, run.Reason = time.Now(), outcome.Status, outcome.Reason
	})
	p.busy.Wait()
}

// note changes what is told, and writes it beside everything else.
func (p *past) note(change func(*exitcode.LastRun)) {
	p.busy.Go(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.held {
			return
		}
		change(&p.run)
		if err := p.run.Keep(p.path); err != nil {
			p.log.Debug().Err(err).Msg("the next run will not know how this one ended")
		}
	})
}

// maxDump bounds a dump of goroutines, in bytes.
const maxDump = 1 << 20

// leaveDump says in the crash note what everybody waits for.
func leaveDump(note *exitcode.CrashNote, outcome lifecycle.Outcome) error {
	dump := make([]byte, maxDump)
	dump = dump[:runtime.Stack(dump, true)]
	return note.Leave(fmt.Sprintf("%s: %s\n\n%s", outcome.Status, outcome.Reason, dump))
}
