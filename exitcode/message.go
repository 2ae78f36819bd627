package exitcode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"etcd-wrapper/internal/printable"
)

// maxMessage is the size in bytes that Kubernetes keeps of a container's termination message.
const maxMessage = 4096

// Message is Kubernetes' termination message, which `kubectl describe pod` shows on a terminal: what is not printable is
// escaped. A process that is killed can't write one, so what would be true then is written beforehand. Any goroutine may
// call its methods.
type Message struct {
	path string

	mu    sync.Mutex
	final bool
}

// NewMessage returns the message that lives at path. It touches nothing.
func NewMessage(path string) *Message { return &Message{path: path} }

// Prepare writes what is true if the process ends here and now, unless the last word is said. The error is as for Say.
func (m *Message) Prepare(text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.final {
		return nil
	}
	return Explain(m.path, text)
}

// Say writes the last word. A file that is not there is no error: then nobody asked for a message.
func (m *Message) Say(text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.final = true
	return Explain(m.path, text)
}

// Explain is Say for a process that has prepared nothing.
func Explain(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write termination message: %w", err)
	}
	// Cut afterwards, not before: whoever kills the process in between still leaves a message behind.
	written, err := file.WriteString(beginning(printable.Text(text), maxMessage))
	if info, statErr := file.Stat(); err == nil && statErr == nil && info.Mode().IsRegular() {
		err = file.Truncate(int64(written))
	}
	return errors.Join(err, file.Close())
}
