package logstream

import (
	"encoding/json"
	"io"
	"strings"

	"etcd-wrapper/internal/printable"
)

// MessageWriter returns a writer that turns the lines of a logger into sentences, as a command prints errors at a terminal: program, event, cause.
func MessageWriter(to io.Writer) io.Writer { return messageWriter{to} }

type messageWriter struct{ to io.Writer }

// Write implements io.Writer. It takes one line.
func (s messageWriter) Write(line []byte) (int, error) {
	var fields struct{ Message, Error string }
	if err := json.Unmarshal(line, &fields); err != nil {
		return s.to.Write(line)
	}
	words := []string{"etcd-wrapper"}
	for _, word := range []string{fields.Message, fields.Error} {
		if word != "" {
			words = append(words, printable.Line(word)) // in JSON it was escaped
		}
	}
	if _, err := io.WriteString(s.to, strings.Join(words, ": ")+"\n"); err != nil {
		return 0, err
	}
	return len(line), nil
}

// infoFilter drops the info lines of etcd, forty at each start.
type infoFilter struct{ to io.Writer }

// Write implements io.Writer. It takes one line.
func (w infoFilter) Write(line []byte) (int, error) {
	var fields struct{ Level, Component string }
	if err := json.Unmarshal(line, &fields); err == nil && fields.Component == "etcd" && fields.Level == "info" {
		return len(line), nil
	}
	return w.to.Write(line)
}
