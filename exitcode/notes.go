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

// A CrashNote is a file on the volume that contains the reason for a crash. The note is only shown to users: after a
// crash, there is no clean exit record, so the next start performs a full validation with or without a note.
type CrashNote struct {
	path string
	file atomic.Pointer[os.File] // nil unless armed; atomic because a start may still call Arm while the process exits
}

// Suffixes that Arm appends to the names of notes on earlier crashes.
const (
	firstCrash  = ".first"  // first crash since a run served requests
	latestCrash = ".latest" // latest crash since then, if there has been more than one
)

// NewCrashNote returns the note at path without accessing the file.
func NewCrashNote(path string) *CrashNote { return &CrashNote{path: path} }

// PreviousReason returns the reason for the crash of the last run on one line, or "" if there is none. Call
// PreviousReason before Arm, which renames the note.
func (n *CrashNote) PreviousReason() string { return firstLineOf(n.path) }

// FirstReason returns the reason for the first crash in a crash loop, or "" if there was none or it happened before
// since.
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
	defer file.Close() // opened read-only, so a close error is harmless
	content, err := io.ReadAll(io.LimitReader(file, maxMessage))
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	return printable.Line(string(line))
}

// Arm makes the Go runtime write the stack trace of a panic in any goroutine to the note. If there is a note on a
// previous crash, Arm first renames the note, so that it is not overwritten. loops must be true if no run has served
// requests since the first crash: the note is then kept as the latest one of the crash loop, unless it is the first.
// Call Arm only while the volume is locked, because a second process could otherwise overwrite the note. If the note
// is already armed, Arm does nothing.
func (n *CrashNote) Arm(loops bool) error {
	if n.file.Load() != nil {
		return nil
	}
	if err := n.keep(loops); err != nil {
		return fmt.Errorf("cannot preserve the crash note of the last run: %w", err)
	}
	file, err := os.OpenFile(n.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("cannot prepare the crash note: %w", err)
	}
	reserve(file, 16<<10)
	err = debug.SetCrashOutput(file, debug.CrashOptions{})
	n.file.Store(file)
	if err != nil {
		return fmt.Errorf("cannot prepare the crash note: %w", err)
	}
	return nil
}

// keep renames the note on the previous crash, so that the next crash does not overwrite it.
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

// Leave writes the reason for a crash that is not a Go panic, such as a fatal etcd error. If the note is not armed,
// Leave does nothing.
func (n *CrashNote) Leave(reason string) error {
	file := n.file.Load()
	if file == nil {
		return nil
	}
	_, err := file.WriteString(printable.Text(reason) + "\n")
	return errors.Join(err, file.Sync())
}

// Discard removes an armed note after a run that did not crash.
func (n *CrashNote) Discard() error {
	file := n.file.Swap(nil)
	if file == nil {
		return nil
	}
	err := debug.SetCrashOutput(nil, debug.CrashOptions{})
	return errors.Join(err, file.Close(), os.Remove(n.path))
}

// A LastRun is a note on the volume that describes a run, so that the next run can report to users how the run ended.
// The note does not affect the validation mode. The zero value means that there is no note.
type LastRun struct {
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended,omitzero"` // zero while the run is in progress, or if the process was killed
	Status Code      `json:"status"`         // only valid if Ended is set
	Reason string    `json:"reason,omitempty"`
	Served bool      `json:"served"` // the run served requests
	// DataDir is the data directory of the latest run that served requests, which may be an earlier run. DataDir
	// proves that there was a database, even if the directory is now empty.
	DataDir string `json:"data_dir,omitempty"`
}

// Lost reports whether the latest run that served requests used dataDir, but dataDir is now missing or empty
// according to isEmpty, so the data has been lost.
func (r LastRun) Lost(dataDir string, isEmpty func(dataDir string) bool) bool {
	return r.DataDir != "" && r.DataDir == dataDir && isEmpty(dataDir)
}

// Maximum sizes in bytes.
const (
	maxLastRun    = 8 << 10 // note about the last run
	maxLastReason = 1 << 10 // LastRun.Reason in the note
)

// ReadLastRun returns the note at path, or fs.ErrNotExist if there is none.
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

// Keep durably writes the note to path. The caller must hold the lock of the volume.
func (r LastRun) Keep(path string) error {
	r.Reason = truncate(r.Reason, maxLastReason)
	content, err := json.Marshal(r)
	if err == nil {
		err = disk.Replace(path, append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write the note about this run: %w", err)
	}
	return nil
}

// maxMessage is Kubernetes' size limit for termination messages in bytes.
const maxMessage = 4096

// A Message is the termination message of the container. Unprintable characters are escaped, because `kubectl
// describe pod` prints the message to a terminal. A process that is killed cannot write a message, so Prepare
// writes one in advance. A Message is safe for concurrent use.
type Message struct {
	path string

	mu    sync.Mutex
	final bool
}

// NewMessage returns the message at path without accessing the file.
func NewMessage(path string) *Message { return &Message{path: path} }

// Prepare writes the message to show if the process is killed, unless the final message has already been written.
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

// WriteMessage writes a termination message. If the file does not exist, WriteMessage does nothing: Kubernetes
// creates the file before it starts a container, so the process is not running in a pod.
func WriteMessage(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write the termination message: %w", err)
	}
	// The file is truncated only after the write, so it contains a message even if the process is killed in
	// between.
	written, err := file.WriteString(truncate(printable.Text(text), maxMessage))
	if info, statErr := file.Stat(); err == nil && statErr == nil && info.Mode().IsRegular() {
		err = file.Truncate(int64(written))
	}
	return errors.Join(err, file.Close())
}

// truncate returns at most size bytes of the text without splitting a character.
func truncate(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}
