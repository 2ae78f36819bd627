package dataversion_test

import (
	"bytes"
	"sync"
)

// lines is a log that a test may read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) tail() string {
	all := l.String()
	return all[max(0, len(all)-3000):]
}
