// Package commandline reads the command line as the operator writes it: in the dialect of Go's flag package, which the
// program that the operator's pods were made for uses, with environment variables for those that are settings of a pod.
// It owns the flags of start-etcd, their defaults and their validation.
//
// The command hands its commands over as a struct for kong and gets the one that was chosen. Nothing here has an effect
// but on environment variables that do not count.
package commandline

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// prefix begins the name of every flag's environment variable.
const prefix = "ETCD_WRAPPER"

// Done is the error of Parse when everything is said, as after --help. Its value is the exit status.
type Done int

// Error implements error.
func (d Done) Error() string { return fmt.Sprintf("done, with exit status %d", int(d)) }

// New returns a parser for commands, a pointer to a struct as kong reads it. out gets what --help prints.
func New(commands any, out io.Writer) (*kong.Kong, error) {
	parser, err := kong.New(commands,
		kong.Name("etcd-wrapper"),
		kong.Description("The entrypoint of an etcd pod: validate, start, serve and stop etcd, visibly."),
		kong.Help(help),
		kong.ValueFormatter(func(value *kong.Value) string { return value.Help }), // variables are told of once
		kong.Vars{"home": os.Getenv("HOME"), "termination": DefaultTerminationPath, "keep": DefaultKeep},
		kong.DefaultEnvars(prefix),
		kong.Writers(out, io.Discard), // errors are returned
		kong.Exit(func(status int) { panic(Done(status)) }),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot build the command line: %w", err)
	}
	return parser, nil
}

// Parse fills commands in and returns a pointer to the chosen one. The error is Done if nothing is left to do, or one
// sentence that names the flag.
func Parse(commands any, args []string, out io.Writer) (chosen any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			done, ok := cause.(Done)
			if !ok {
				panic(cause)
			}
			err = done
		}
	}()
	parser, err := New(commands, out)
	if err != nil {
		return nil, err
	}
	context, err := parser.Parse(asGoReadsFlags(asked(args), passing(parser)))
	if err != nil {
		return nil, err
	}
	return context.Selected().Target.Addr().Interface(), nil
}

// passing are the commands after which the rest is passed on as it is.
func passing(parser *kong.Kong) (names []string) {
	for _, command := range parser.Model.Leaves(false) {
		if command.Passthrough {
			names = append(names, command.Name)
		}
	}
	return names
}
