package exitcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"
	"time"
	"unicode/utf8"

	"etcd-wrapper/internal/printable"
)

// beginning is as much of text as size bytes hold, in whole characters.
func beginning(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// CrashNote keeps the reason of a crash on the volume, for people. It never takes part in the choice of the validation
// mode: a crash is the absence of a clean exit record.
type CrashNote struct {
	path string
	file *os.File
}

// What the notes of earlier crashes are called, beside the one of this run.
const (
	firstCrash  = ".first"  // of the crashes since a run has served
	latestCrash = ".latest" // the last of them, if there was more than one
)

// reserved is the room, in bytes, that an armed note has on a volume that becomes full.
const reserved = 16 << 10

// NewCrashNote returns the note that lives at path. It touches nothing.
func NewCrashNote(path string) *CrashNote { return &CrashNote{path: path} }

// Previous returns the line that says why the last run crashed, or "". Call it before Arm.
func (n *CrashNote) Previous() string { return firstLineOf(n.path) }

// First returns the same for the first crash of a loop, or "".
func (n *CrashNote) First() string { return firstLineOf(n.path + firstCrash) }

// FirstSince returns the same if it was written at a moment or later.
func (n *CrashNote) FirstSince(at time.Time) string {
	info, err := os.Lstat(n.path + firstCrash)
	if err != nil || info.ModTime().Before(at) {
		return ""
	}
	return n.First()
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

// Arm has Go's runtime write the trace of a panic in any goroutine to the note. What the last crash left there is kept
// beside it: as the first of a loop or, after that, as its latest; goesOn says whether the loop goes on, or a run has
// served since it began. Call it when the volume's lock is held, so that a second process on the volume cannot overwrite
// the note of the first. An armed note stays as it is.
func (n *CrashNote) Arm(goesOn bool) error {
	if n.file != nil {
		return nil
	}
	if err := n.keep(goesOn); err != nil {
		return fmt.Errorf("cannot keep the crash note of the last run: %w", err)
	}
	file, err := os.OpenFile(n.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("cannot prepare crash note: %w", err)
	}
	n.file = file
	reserve(file, reserved)
	if err := debug.SetCrashOutput(file, debug.CrashOptions{}); err != nil {
		return fmt.Errorf("cannot prepare crash note: %w", err)
	}
	return nil
}

// keep puts the note of the last run, if it crashed, where the next crash does not overwrite it.
func (n *CrashNote) keep(goesOn bool) error {
	if n.Previous() == "" {
		return nil
	}
	if goesOn && n.First() != "" {
		return os.Rename(n.path, n.path+latestCrash)
	}
	if err := os.Remove(n.path + latestCrash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(n.path, n.path+firstCrash)
}

// Leave writes reason into an armed note. It is for a crash that is not a Go panic, such as etcd's own fatal failures.
func (n *CrashNote) Leave(reason string) error {
	if n.file == nil {
		return nil
	}
	_, err := n.file.WriteString(printable.Text(reason) + "\n")
	return errors.Join(err, n.file.Sync())
}

// Discard ends an armed note whose run did not crash.
func (n *CrashNote) Discard() error {
	if n.file == nil {
		return nil
	}
	err := debug.SetCrashOutput(nil, debug.CrashOptions{})
	err = errors.Join(err, n.file.Close(), os.Remove(n.path))
	n.file = nil
	return err
}
