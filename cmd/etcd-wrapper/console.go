package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/exitcode/printable"
)

// newLog returns the log stream in the form that start-etcd was asked for.
func (c *startCommand) newLog(to io.Writer) zerolog.Logger {
	if c.LogFormat == "console" {
		to = zerolog.ConsoleWriter{
			Out: to, NoColor: !colourful(to), TimeFormat: "15:04:05.000", FormatPrepare: forPeople,
		}
	}
	return newLog(to, c.level())
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
	way := fmt.Sprintf("%s → %s", line["from"], line["to"])
	if line["from"] == line["to"] {
		way = fmt.Sprintf("%s stays", line["from"])
	}
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
	return rounded(time.Duration(count * float64(time.Millisecond))).String()
}
