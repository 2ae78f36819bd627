package logstream

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/exitcode/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// ForPeople turns the lines of a logger that writes to it into a form for people at a terminal, in colours where the
// terminal has them.
func ForPeople(to io.Writer) io.Writer {
	return zerolog.ConsoleWriter{
		Out: to, NoColor: !terminal.Colourful(to), TimeFormat: "15:04:05.000", FormatPrepare: forPeople,
	}
}

// forPeople makes a line fit for a terminal: nothing in it is obeyed there.
func forPeople(line map[string]any) error {
	for name, value := range line {
		line[name] = shownValue(value)
	}
	return stepForPeople(line)
}

func shownValue(value any) any {
	switch value := value.(type) {
	case string:
		return printable.Text(value)
	case []any:
		for i := range value {
			value[i] = shownValue(value[i])
		}
	case map[string]any:
		for name := range value {
			value[name] = shownValue(value[name])
		}
	}
	return value
}

// stepForPeople writes a step of the state machine as "Query → Wait: reason".
func stepForPeople(line map[string]any) error {
	if line["event"] == nil || line["from"] == nil || line["to"] == nil {
		return nil
	}
	way := terminal.Way(fmt.Sprint(line["from"]), fmt.Sprint(line["to"]))
	line[zerolog.MessageFieldName] = fmt.Sprintf("%-26s %s", way, line[zerolog.MessageFieldName])
	for _, name := range []string{"from", "to", "event"} {
		delete(line, name)
	}
	if line["times"] == json.Number("1") {
		delete(line, "times")
	}
	for _, name := range []string{"after", "next_within"} {
		if number, ok := line[name].(json.Number); ok {
			line[name] = milliseconds(number)
		}
	}
	return nil
}

func milliseconds(number json.Number) string {
	count, err := number.Float64()
	if err != nil {
		return number.String()
	}
	return terminal.Rounded(time.Duration(count * float64(time.Millisecond))).String()
}
