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
	"unicode/utf8"

	"etcd-wrapper/exitcode/printable"
)

// maxMessage is the size in bytes that Kubernetes keeps of a container's termination message.
const maxMessage = 4096

// Explain writes reason to Kubernetes' termination message file at path, which `kubectl describe pod` shows on a terminal:
// what is not printable is escaped. A file that is not there is no error: then nobody asked for a message.
func Explain(path, reason string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write termination message: %w", err)
	}
	_, err = file.WriteString(beginning(printable.Text(reason), maxMessage))
	return errors.Join(err, file.Close())
}

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

// NewCrashNote returns the note that lives at path. It touches nothing.
func NewCrashNote(path string) *CrashNote { return &CrashNote{path: path} }

// Previous returns the first line that a crash left behind, or "". Call it before Arm.
func (n *CrashNote) Previous() string {
	file, err := os.OpenFile(n.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
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

// Arm has Go's runtime write the trace of a panic in any goroutine to the note. Call it when the volume's lock is held, so
// that a second process on the volume cannot overwrite the note of the first. An armed note stays as it is.
func (n *CrashNote) Arm() error {
	if n.file != nil {
		return nil
	}
	file, err := os.OpenFile(n.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("cannot prepare crash note: %w", err)
	}
	n.file = file
	if err := debug.SetCrashOutput(file, debug.CrashOptions{}); err != nil {
		return fmt.Errorf("cannot prepare crash note: %w", err)
	}
	return nil
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
