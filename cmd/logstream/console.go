package logstream

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// ConsoleOptions configures the log output on a terminal.
type ConsoleOptions struct {
	Colour bool // use colors
	All    bool // also show etcd's own lines at info level
}

// Console returns a writer that formats JSON log lines for a terminal.
func Console(to io.Writer, look ConsoleOptions) io.Writer {
	console := zerolog.ConsoleWriter{
		Out: to, NoColor: !look.Colour, TimeFormat: "2006-01-02 15:04:05.000 MST", TimeLocation: time.UTC, FormatPrepare: prepareLine,
	}
	if look.All {
		return console
	}
	return infoFilter{console}
}

// prepareLine escapes control characters and formats durations.
func prepareLine(line map[string]any) error {
	for name, value := range line {
		if number, ok := value.(json.Number); ok && strings.HasSuffix(name, inMilliseconds) {
			delete(line, name)
			name, value = strings.TrimSuffix(name, inMilliseconds), formatDuration(number)
		}
		line[name] = printableValue(value)
	}
	message, _ := line[zerolog.MessageFieldName].(string)
	if cause, ok := line[zerolog.ErrorFieldName].(string); ok && strings.Contains(message, cause) {
		delete(line, zerolog.ErrorFieldName) // the message already contains the error
	}
	return prepareTransition(line)
}

func printableValue(value any) any {
	switch value := value.(type) {
	case string:
		return printable.Text(value)
	case []any:
		for i := range value {
			value[i] = printableValue(value[i])
		}
	case map[string]any:
		for name := range value {
			value[name] = printableValue(value[name])
		}
	}
	return value
}

// prepareTransition formats a state transition as "Query → Wait: reason".
func prepareTransition(line map[string]any) error {
	if line["event"] == nil || line["from"] == nil || line["to"] == nil {
		return nil
	}
	way := terminal.FormatStep(fmt.Sprint(line["from"]), fmt.Sprint(line["to"]))
	line[zerolog.MessageFieldName] = fmt.Sprintf("%-26s %s", way, line[zerolog.MessageFieldName])
	for _, name := range []string{"from", "to", "event"} {
		delete(line, name)
	}
	if line["times"] == json.Number("1") {
		delete(line, "times")
	}
	return nil
}

// inMilliseconds is the suffix of the names of duration fields.
const inMilliseconds = "_ms"

func formatDuration(number json.Number) string {
	count, err := number.Float64()
	if err != nil {
		return number.String()
	}
	return terminal.Round(time.Duration(count * float64(time.Millisecond))).String()
}

// infoFilter drops etcd's own log lines at info level, about 40 per start.
type infoFilter struct{ to io.Writer }

// Write implements io.Writer for one log line per call.
func (w infoFilter) Write(line []byte) (int, error) {
	var fields struct{ Level, Component string }
	if err := json.Unmarshal(line, &fields); err == nil && fields.Component == "etcd" && fields.Level == "info" {
		return len(line), nil
	}
	return w.to.Write(line)
}
