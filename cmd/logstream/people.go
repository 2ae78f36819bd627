package logstream

import (
	"encoding/json"
	"io"
	"strings"

	"etcd-wrapper/internal/printable"
)

// Plain turns the lines of a logger that writes to it into what a command says to somebody at a terminal: the name of
// the program, what happened, and why.
func Plain(to io.Writer) io.Writer { return plainWriter{to} }

type plainWriter struct{ to io.Writer }

// Write implements io.Writer. It takes one line.
func (s plainWriter) Write(line []byte) (int, error) {
	var told struct{ Message, Error string }
	if err := json.Unmarshal(line, &told); err != nil {
		return s.to.Write(line)
	}
	words := []string{"etcd-wrapper"}
	for _, word := range []string{told.Message, told.Error} {
		if word != "" {
			words = append(words, printable.Line(word)) // in JSON it was escaped
		}
	}
	if _, err := io.WriteString(s.to, strings.Join(words, ": ")+"\n"); err != nil {
		return 0, err
	}
	return len(line), nil
}

// quietWriter drops what etcd says while all is well, which is forty lines at each start.
type quietWriter struct{ to io.Writer }

// Write implements io.Writer. It takes one line.
func (w quietWriter) Write(line []byte) (int, error) {
	var told struct{ Level, Component string }
	if err := json.Unmarshal(line, &told); err == nil && told.Component == "etcd" && told.Level == "info" {
		return len(line), nil
	}
	return w.to.Write(line)
}
