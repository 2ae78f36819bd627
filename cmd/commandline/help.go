package commandline

import (
	"fmt"
	"slices"

	"github.com/alecthomas/kong"
)

// Noted is a command with more to say below its flags in its help.
type Noted interface{ Notes() string }

// help prints the help of the program, or of one of its commands, which is spared the program's own flags.
func help(options kong.HelpOptions, context *kong.Context) error {
	selected := context.Selected()
	if selected == nil {
		return kong.DefaultHelpPrinter(options, context)
	}
	for _, flag := range context.Model.Flags {
		flag.Hidden = flag != context.Model.HelpFlag
	}
	if err := kong.DefaultHelpPrinter(options, context); err != nil {
		return err
	}
	if noted, has := selected.Target.Addr().Interface().(Noted); has {
		_, err := fmt.Fprintf(context.Stdout, "\n%s", noted.Notes())
		return err
	}
	return nil
}

// asked makes a flag of the word help in the place of a command, as in "help start-etcd".
func asked(args []string) []string {
	if len(args) > 0 && args[0] == "help" {
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}
