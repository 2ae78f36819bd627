// Package logtest provides a log that tests can read while it is being written.
package logtest

import (
	"bytes"
	"sync"
)

// Lines collects the output of a log. The zero value is empty. Lines is safe for concurrent use.
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

// String returns everything written so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
