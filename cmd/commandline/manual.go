package commandline

import "github.com/alecthomas/kong"

// Documented is a command line with a manual: help and the manual page show its text below the flags of a command. A
// command is named by its words, such as "backup list".
type Documented interface{ Manual(command string) string }

// helpWidth is the number of columns that help uses.
const helpWidth = 80

// manualOf returns the manual of a command; empty if there is none.
func manualOf(app *kong.Application, command *kong.Node) string {
	documented, is := app.Target.Addr().Interface().(Documented)
	if !is {
		return ""
	}
	return documented.Manual(command.Path())
}
