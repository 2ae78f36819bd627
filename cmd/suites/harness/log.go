package harness

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A Line is a log line, or the fields to match in one.
type Line map[string]any

// A Log contains the lines that a process has written to standard error.
type Log struct {
	mu    sync.Mutex
	raw   []string
	lines []Line
	bad   []string // lines that are not valid log lines; not to be read before the process has exited
}

// Lines returns the number of lines logged so far.
func (l *Log) Lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.raw)
}

func (l *Log) add(raw []byte) {
	if len(raw) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.raw = append(l.raw, string(raw))
	parsed := Line{}
	err := json.Unmarshal(bytes.TrimSpace(raw), &parsed)
	if err != nil || parsed["level"] == nil || parsed["time"] == nil {
		l.bad = append(l.bad, string(raw))
		return
	}
	l.lines = append(l.lines, parsed)
}

var allLogs = flag.Bool("all-logs", false, "also print etcd's own log lines when a test fails")

// ofEtcd matches lines that etcd itself has logged.
const ofEtcd = `"component":"etcd"`

// summary returns the text that a failing test prints: the wrapper's log lines and the number of etcd's log lines that
// were omitted.
func (l *Log) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	shown := slices.DeleteFunc(slices.Clone(l.raw), func(raw string) bool { return !*allLogs && strings.Contains(raw, ofEtcd) })
	if left := len(l.raw) - len(shown); left > 0 {
		shown = append(shown, fmt.Sprintf("(%d of etcd's own log lines omitted; -all-logs prints them)\n", left))
	}
	return strings.Join(shown, "")
}

// Matching returns the lines that have all the given fields with the same values. A line's message only has to contain
// the given message.
func (l *Log) Matching(want Line) (found []Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, have := range l.lines {
		if have.has(want) {
			found = append(found, have)
		}
	}
	return found
}

func (have Line) has(want Line) bool {
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

// FindText returns the raw lines that contain the given text.
func (l *Log) FindText(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, raw := range l.raw {
		if strings.Contains(raw, text) {
			found = append(found, raw)
		}
	}
	return found
}
