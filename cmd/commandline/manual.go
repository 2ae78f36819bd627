package commandline

import "github.com/alecthomas/kong"

// Documented is implemented by command lines that provide a manual for their commands. The manual appears below the
// command's flags, both in its help and on the man page. A command is identified by its words, such as "backup list".
type Documented interface{ Manual(command string) string }

// helpWidth is the width of the help output in columns.
const helpWidth = 80

// manualOf returns the manual of a command, or an empty string if it has none.
func manualOf(app *kong.Application, command *kong.Node) string {
	documented, ok := app.Target.Addr().Interface().(Documented)
	if !ok {
		return ""
	}
	return documented.Manual(command.Path())
}
