// Package logtest provides a log that tests can read while it is written.
package logtest

import (
	"bytes"
	"sync"
)

// Lines holds everything that was written to a log. The zero value is empty. It is safe for concurrent use.
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

// String returns everything that was written.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
