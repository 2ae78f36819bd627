package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// line is a line of the log, or the part of one that is looked for.
type line map[string]any

// logbook keeps what a process wrote to stderr.
type logbook struct {
	mu    sync.Mutex
	raw   []string
	lines []line
	bad   []string
	news  chan struct{} // closed with the next line
}

// written returns a channel that is closed when there is another line.
func (l *logbook) written() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news == nil {
		l.news = make(chan struct{})
	}
	return l.news
}

func (l *logbook) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.raw)
}

func (l *logbook) add(raw []byte) {
	if len(raw) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.raw = append(l.raw, string(raw))
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
	parsed := line{}
	err := json.Unmarshal(bytes.TrimSpace(raw), &parsed)
	if err != nil || parsed["level"] == nil || parsed["time"] == nil {
		l.bad = append(l.bad, string(raw))
		return
	}
	l.lines = append(l.lines, parsed)
}

func (l *logbook) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.raw, "")
}

func (l *logbook) malformed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.bad)
}

// matching returns the lines that have these fields, the message compared by what it contains.
func (l *logbook) matching(want line) (found []line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, have := range l.lines {
		if have.has(want) {
			found = append(found, have)
		}
	}
	return found
}

func (have line) has(want line) bool {
	for key, value := range want {
		if key == "message" && strings.Contains(fmt.Sprint(have[key]), fmt.Sprint(value)) {
			continue
		}
		if have[key] != value {
			return false
		}
	}
	return true
}

// containing returns the lines whose text contains the words.
func (l *logbook) containing(words string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, raw := range l.raw {
		if strings.Contains(raw, words) {
			found = append(found, raw)
		}
	}
	return found
}

// states returns the states in the order of their visits; a poll that repeats, Wait and Query, is shown once.
func (l *logbook) states() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	visited := []string{"Query"}
	for _, entry := range l.lines {
		to, ok := entry["to"].(string)
		if entry["event"] == nil || !ok || to == visited[len(visited)-1] {
			continue
		}
		visited = collapsed(append(visited, to))
	}
	return visited
}

func collapsed(visited []string) []string {
	keep := len(visited) - 2
	if keep >= 2 && slices.Equal(visited[keep-2:], []string{"Wait", "Query", "Wait", "Query"}) {
		return visited[:keep]
	}
	return visited
}
