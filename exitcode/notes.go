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

// A CrashNote keeps the reason of a crash on the volume, for users. The validation mode does not depend on it: after
// a crash there is no clean exit record.
type CrashNote struct {
	path string
	file atomic.Pointer[os.File] // nil unless armed; a start that was abandoned may still arm it while the program ends
}

// The suffixes of the notes of earlier crashes.
const (
	firstCrash  = ".first"  // the first crash since a run has served
	latestCrash = ".latest" // the latest crash since then, if there was more than one
)

// NewCrashNote returns the note at path. It does not access it.
func NewCrashNote(path string) *CrashNote { return &CrashNote{path: path} }

// PreviousReason returns the line with the reason of the last run's crash, or "". Call it before Arm.
func (n *CrashNote) PreviousReason() string { return firstLineOf(n.path) }

// FirstReason returns the same line for the first crash of a loop, or "" if that crash was before since.
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
	defer file.Close() // the file was only read
	content, err := io.ReadAll(io.LimitReader(file, maxMessage))
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	return printable.Line(string(line))
}

// Arm makes Go's runtime write the trace of a panic in any goroutine to the note. It preserves the last crash's note
// next to it, as the first or the latest of a crash loop; loops reports that no run has served since the first. Call
// it while the volume's lock is held, so that a second process cannot overwrite the note of the first. Arming a note
// again does nothing.
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

// keep moves the note of a crash to a name that the next crash does not overwrite.
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

// Leave writes the reason of a crash that is not a Go panic, such as etcd's fatal failures, to an armed note.
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

// A LastRun describes a run to the next one, for users. The validation mode does not depend on it, only on the exit
// record. The zero value means that there is no note.
type LastRun struct {
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended,omitzero"` // zero while it runs, and for good if it ended without a word
	Status Code      `json:"status"`         // valid with Ended
	Reason string    `json:"reason,omitempty"`
	Served bool      `json:"served"` // it came to serve
	// DataDir is the data directory of the latest run that served, which may be an earlier one. It shows that there
	// was a database even if the directory is empty now.
	DataDir string `json:"data_dir,omitempty"`
}

// Lost reports whether a run has served data in a directory that is now empty or missing, according to isEmpty.
func (r LastRun) Lost(dataDir string, isEmpty func(dataDir string) bool) bool {
	return r.DataDir != "" && r.DataDir == dataDir && isEmpty(dataDir)
}

// maxLastRun limits the bytes that are read of a note, and maxLastReason the bytes of its reason that are kept.
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

// Keep durably replaces the note at path. Only the holder of the volume's lock may call it.
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

// maxMessage is the number of bytes of a container's termination message that Kubernetes keeps.
const maxMessage = 4096

// Message is the termination message of Kubernetes. Since `kubectl describe pod` shows it on a terminal, unprintable
// characters are escaped. A killed process cannot write one, so Prepare writes in advance the message that applies if
// that happens. Its methods may be called from any goroutine.
type Message struct {
	path string

	mu    sync.Mutex
	final bool
}

// NewMessage returns the message at path. It does not access it.
func NewMessage(path string) *Message { return &Message{path: path} }

// Prepare writes the message that applies if the process is killed, unless the final message has been written.
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

// WriteMessage writes a termination message. If the file does not exist, no message is expected, so that is not an
// error.
func WriteMessage(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write termination message: %w", err)
	}
	// The file is truncated after the write, so that a kill in between still leaves a message.
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
