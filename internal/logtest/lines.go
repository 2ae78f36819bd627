// Package logtest has a log for tests that read it while it is written.
package logtest

import (
	"bytes"
	"sync"
)

// Lines is all that was written to a log so far. The zero value is an empty one; any goroutine may write and read it.
type Lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer and never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is what was written.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Tail is the end of what was written, as much as a person reads when a test fails.
func (l *Lines) Tail() string {
	all := l.String()
	return all[max(0, len(all)-3000):]
}
