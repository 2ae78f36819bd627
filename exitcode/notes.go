package exitcode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"etcd-wrapper/internal/disk"
	"etcd-wrapper/internal/printable"
)

// CrashNote keeps the reason of a crash on the volume, for people. It never takes part in the choice of the validation
// mode: a crash is the absence of a clean exit record.
type CrashNote struct {
	path string
	file atomic.Pointer[os.File] // nil unless armed; a start that was abandoned may still arm it while the program ends
}

// The suffixes of the notes of earlier crashes.
const (
	firstCrash  = ".first"  // of the crashes since a run has served
	latestCrash = ".latest" // the last of them, if there was more than one
)

// NewCrashNote returns the note that lives at path. It touches nothing.
func NewCrashNote(path string) *CrashNote { return &CrashNote{path: path} }

// PreviousReason returns the line with the reason of the last run's crash, or "". Call it before Arm.
func (n *CrashNote) PreviousReason() string { return firstLineOf(n.path) }

// FirstReason returns the same for the first crash of a loop, or "" if it was written before that moment.
func (n *CrashNote) FirstReason(since time.Time) string {
	info, err := os.Lstat(n.path + firstCrash)
	if err != nil || info.ModTime().Before(since) {
		return ""
	}
	return firstLineOf(n.path + firstCrash)
}

func firstLineOf(path string) string {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close() // nothing was written
	content, err := io.ReadAll(io.LimitReader(file, maxMessage))
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	return printable.Line(string(line))
}

// Arm makes Go's runtime write the trace of a panic in any goroutine to the note. The note of the last crash is
// preserved next to it, as the first of a loop or as its latest; loops reports whether no run has served since the
// first. Call it while the volume's lock is held, so that a second process cannot overwrite the note of the first. An
// armed note stays as it is.
func (n *CrashNote) Arm(loops bool) error {
	if n.file.Load() != nil {
		return nil
	}
	if err := n.keep(loops); err != nil {
		return fmt.Errorf("cannot keep the crash note of the last run: %w", err)
	}
	file, err := os.OpenFile(n.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("cannot prepare crash note: %w", err)
	}
	reserve(file, 16<<10)
	err = debug.SetCrashOutput(file, debug.CrashOptions{})
	n.file.Store(file)
	if err != nil {
		return fmt.Errorf("cannot prepare crash note: %w", err)
	}
	return nil
}

// keep moves the note of a crash to where the next crash does not overwrite it.
func (n *CrashNote) keep(loops bool) error {
	if n.PreviousReason() == "" {
		return nil
	}
	if loops && n.FirstReason(time.Time{}) != "" {
		return os.Rename(n.path, n.path+latestCrash)
	}
	if err := os.Remove(n.path + latestCrash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(n.path, n.path+firstCrash)
}

// Leave writes reason into an armed note. It is for a crash that is not a Go panic, such as etcd's fatal failures.
func (n *CrashNote) Leave(reason string) error {
	file := n.file.Load()
	if file == nil {
		return nil
	}
	_, err := file.WriteString(printable.Text(reason) + "\n")
	return errors.Join(err, file.Sync())
}

// Discard ends an armed note whose run did not crash.
func (n *CrashNote) Discard() error {
	file := n.file.Swap(nil)
	if file == nil {
		return nil
	}
	err := debug.SetCrashOutput(nil, debug.CrashOptions{})
	return errors.Join(err, file.Close(), os.Remove(n.path))
}

// LastRun describes a run to the next one, for users. It never takes part in the choice of the validation mode, which
// depends on the exit record alone. No run leaves the zero value.
type LastRun struct {
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended,omitzero"` // zero while it runs, and for good if it ended without a word
	Status Code      `json:"status"`         // valid with Ended
	Reason string    `json:"reason,omitempty"`
	Served bool      `json:"served"` // it came to serve
	// DataDir is the data directory that the latest run to serve had, this one or an earlier one. It is how a volume remembers that
	// there was a database where the directory is empty now.
	DataDir string `json:"data_dir,omitempty"`
}

// Lost reports whether a run has served data in a directory that is empty or missing now, which isEmpty judges.
func (r LastRun) Lost(dataDir string, isEmpty func(dataDir string) bool) bool {
	return r.DataDir != "" && r.DataDir == dataDir && isEmpty(dataDir)
}

// maxLastRun bounds what is read of a note, in bytes; maxLastReason what is kept of its reason.
const (
	maxLastRun    = 8 << 10
	maxLastReason = 1 << 10
)

// ReadLastRun returns the note at path. The error is fs.ErrNotExist if there is none.
func ReadLastRun(path string) (run LastRun, err error) {
	content, err := disk.ReadHere(path, maxLastRun)
	if err == nil {
		err = json.Unmarshal(content, &run)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return LastRun{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	run.Reason = printable.Line(run.Reason)
	return run, err
}

// Keep replaces the note at path, durably. Only the holder of the volume's lock may call it.
func (r LastRun) Keep(path string) error {
	r.Reason = truncate(r.Reason, maxLastReason)
	content, err := json.Marshal(r)
	if err == nil {
		err = disk.Replace(path, append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot keep how this run ends: %w", err)
	}
	return nil
}

// maxMessage is the size in bytes that Kubernetes keeps of a container's termination message.
const maxMessage = 4096

// Message is the termination message of Kubernetes, which `kubectl describe pod` shows on a terminal: unprintable
// characters are escaped. A process that is killed cannot write one, so Prepare writes beforehand what would be true
// then. Any goroutine may call its methods.
type Message struct {
	path string

	mu    sync.Mutex
	final bool
}

// NewMessage returns the message that lives at path. It touches nothing.
func NewMessage(path string) *Message { return &Message{path: path} }

// Prepare writes the message for the case that the process is killed from now on, unless the final one was written.
func (m *Message) Prepare(text string) error { return m.write(text, false) }

// Finish writes the final message.
func (m *Message) Finish(text string) error { return m.write(text, true) }

func (m *Message) write(text string, final bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.final && !final {
		return nil
	}
	m.final = final
	return WriteMessage(m.path, text)
}

// WriteMessage writes a termination message. A missing file is not an error: no message is expected then.
func WriteMessage(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write termination message: %w", err)
	}
	// Cut afterwards, not before: a kill in between still leaves a message behind.
	written, err := file.WriteString(truncate(printable.Text(text), maxMessage))
	if info, statErr := file.Stat(); err == nil && statErr == nil && info.Mode().IsRegular() {
		err = file.Truncate(int64(written))
	}
	return errors.Join(err, file.Close())
}

// truncate returns the first size bytes of text, in whole characters.
func truncate(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}
