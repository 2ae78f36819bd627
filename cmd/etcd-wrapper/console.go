package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// newLog returns the log stream in the form that start-etcd was asked for.
func (c *startCommand) newLog(to io.Writer) zerolog.Logger {
	if c.LogFormat == "console" {
		to = zerolog.ConsoleWriter{
			Out: to, NoColor: !colourful(to), TimeFormat: "15:04:05.000", FormatPrepare: stepForPeople,
		}
	}
	return newLog(to, c.level())
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
