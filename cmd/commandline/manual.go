package commandline

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// Documented is a command line with a manual: an entry for each command by its words, such as "backup list".
type Documented interface{ Manual() map[string]Entry }

// Entry is the part of help and manual page that follows the flags of a command.
type Entry struct {
	Text     string // sentences
	Examples []Example
	Statuses []Status // by number
}

// Example is a command line. A line that does not start with a command of the program is shown as it is.
type Example struct{ Text, Line string }

// Status is an exit status.
type Status struct {
	Code    int
	Meaning string
}

// entryOf returns the entry of a command, which is empty if there is none.
func entryOf(app *kong.Application, command *kong.Node) Entry {
	documented, is := app.Target.Addr().Interface().(Documented)
	if !is {
		return Entry{}
	}
	return documented.Manual()[commandName(app, command)]
}

// commandName returns the words of a command, without the program's name and arguments: "backup list".
func commandName(app *kong.Application, command *kong.Node) string {
	name := command.Name
	for parent := command.Parent; parent != app.Node; parent = parent.Parent {
		name = parent.Name + " " + name
	}
	return name
}

// line returns an example with the name of the program.
func (e Example) line(program string) string {
	if strings.Contains(e.Line, program) {
		return e.Line
	}
	return program + " " + e.Line
}

// helpWidth is the number of columns that help uses.
const helpWidth = 80

// help returns an entry as --help shows it.
func (e Entry) help(program string) string {
	var b strings.Builder
	if e.Text != "" {
		b.WriteString("\n" + wrapped("", "", e.Text))
	}
	if len(e.Examples) > 0 {
		b.WriteString("\nExamples:\n")
	}
	for _, example := range e.Examples {
		fmt.Fprintf(&b, "  # %s\n  %s\n", example.Text, example.line(program))
	}
	if len(e.Statuses) > 0 {
		b.WriteString("\nExit statuses:\n")
	}
	for _, status := range e.Statuses {
		b.WriteString(wrapped(fmt.Sprintf("  %-3d  ", status.Code), "       ", status.Meaning))
	}
	return b.String()
}

// wrapped breaks text into lines of helpWidth columns. A word that is longer has a line of its own.
func wrapped(first, others, text string) string {
	var b strings.Builder
	line := first
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case len(line)+1+len(word) <= helpWidth:
			line += " " + word
		default:
			b.WriteString(line + "\n")
			line = others + word
		}
	}
	return b.String() + line + "\n"
}
