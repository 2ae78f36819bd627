// Package commandline parses command lines in the syntax of Go's flag package, because gardener/etcd-wrapper uses
// that package and the operator's pods rely on it. It also reads a pod's settings from environment variables. The
// package defines the flags of start-etcd with their defaults and validation.
//
// The caller passes its commands as a struct with kong tags and gets back the selected command. The package has no
// side effects, except that it unsets environment variables that must be ignored.
package commandline

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// prefix is the prefix of the environment variables that set flags.
const prefix = "ETCD_WRAPPER"

// Done is the error that Parse returns if there is nothing left to do, for example after --help. The value of Done is
// the exit status.
type Done int

// Error implements error.
func (d Done) Error() string { return fmt.Sprintf("done (exit status %d)", int(d)) }

// New returns a parser for commands, which is a pointer to a struct with kong tags. The parser prints help to out.
func New(commands any, out io.Writer, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(commands, append(options,
		kong.Name("etcd-wrapper"),
		kong.Description("Run an etcd member that backs itself up, tests its backups and restores itself."),
		kong.Help(help),
		kong.ValueFormatter(func(value *kong.Value) string { return value.Help }), // without the environment variable, which kong appends by default
		kong.Vars{"home": os.Getenv("HOME"), "termination": DefaultTerminationPath, "keep": DefaultKeep},
		kong.DefaultEnvars(prefix),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(duration)),
		kong.Writers(out, io.Discard), // New's callers report errors
	)...)
	if err != nil {
		return nil, fmt.Errorf("cannot build the command line: %w", err)
	}
	return parser, nil
}

// Parse parses args into commands and returns a pointer to the selected command. The error is a Done if there is
// nothing left to do, and otherwise a sentence that names the flag.
func Parse(commands any, args []string, out io.Writer) (chosen any, err error) {
	var done error
	parser, err := New(commands, out, kong.Exit(func(status int) { done = Done(status) })) // does not exit, so kong continues parsing
	if err != nil {
		return nil, err
	}
	read := asGoReadsFlags(helpFlag(args), passthroughCommands(parser))
	if len(read) > 0 && read[0] == startEtcd {
		if err := unknownVariable(parser); err != nil {
			return nil, err
		}
	}
	context, err := parser.Parse(read)
	if err = cmp.Or(done, err); err != nil {
		if flag, problem, _ := strings.Cut(err.Error(), ": "); strings.HasSuffix(problem, ` but got "EOL" (<EOL>)`) {
			err = fmt.Errorf("%s: missing value", flag)
		}
		return nil, err
	}
	return context.Selected().Target.Addr().Interface(), nil
}

// passthroughCommands returns the commands whose arguments are not parsed.
func passthroughCommands(parser *kong.Kong) (names []string) {
	for _, command := range parser.Model.Leaves(false) {
		if command.Passthrough {
			names = append(names, command.Name)
		}
	}
	return names
}

// longFlag matches a flag that starts with one or two dashes. Like Go's flag package, gardener/etcd-wrapper accepts
// both.
var longFlag = regexp.MustCompile(`^--?([a-z][a-z-]+)(=.*)?$`)

// valued lists the operator's flags that require a value. Without "=", the value is the next argument, even if that
// argument starts with a dash.
var valued = []string{
	"etcd-wrapper-port", "etcd-client-port", "backup-restore-host-port", "backup-restore-ca-cert-bundle-path",
	"etcd-server-name", "etcd-client-cert-path", "etcd-client-key-path", "etcd-ready-timeout",
}

// asGoReadsFlags converts single-dash flags to double-dash flags, and joins each flag and its value with "=".
// asGoReadsFlags stops at "--" or at a passthrough command, whose arguments are not parsed. asGoReadsFlags also
// unsets environment variables that are empty or whose flag is set: Kubernetes derives variables from the names of
// Services, and an unused variable must not prevent the start if it is invalid.
func asGoReadsFlags(args, passing []string) (read []string) {
	given := map[string]bool{}
	for i := 0; i < len(args); i++ {
		if args[i] == "--" || slices.Contains(passing, args[i]) {
			read = append(read, args[i:]...)
			break
		}
		parts := longFlag.FindStringSubmatch(args[i])
		if parts == nil {
			read = append(read, args[i])
			continue
		}
		name, value := parts[1], parts[2]
		if value == "" && slices.Contains(valued, name) && i+1 < len(args) {
			i++
			value = "=" + args[i]
		}
		read = append(read, "--"+name+booleanValue(name, value))
		given[variable(name)] = true
	}
	forgetVariables(given)
	return read
}

// booleanValue converts the boolean values that Go's flag package accepts to "true" or "false".
func booleanValue(name, value string) string {
	if enabled, err := strconv.ParseBool(strings.TrimPrefix(value, "=")); err == nil && name == "backup-restore-tls-enabled" {
		return fmt.Sprintf("=%t", enabled)
	}
	return value
}

// forgetVariables unsets environment variables that are empty or whose flag is set.
func forgetVariables(given map[string]bool) {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, prefix+"_") && (value == "" || given[name]) {
			_ = os.Unsetenv(name) // fails only if the name is malformed
		}
	}
}

// startEtcd is the name of the command whose flags can be set by environment variables.
const startEtcd = "start-etcd"

// servicePattern matches the names of the variables that Kubernetes creates for a Service.
var servicePattern = regexp.MustCompile(`^(\w+?)_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// unknownVariable returns an error if an environment variable has the program's prefix but does not belong to a flag.
// Without this check, a pod with a misspelled variable could run without backups.
func unknownVariable(parser *kong.Kong) error {
	known := map[string]bool{}
	for _, command := range parser.Model.Leaves(false) {
		for _, flag := range command.Flags {
			for _, name := range flag.Envs {
				known[name] = true
			}
		}
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		flag, ours := strings.CutPrefix(name, prefix+"_")
		if !ours || known[name] {
			continue
		}
		if isOfService(name) {
			continue
		}
		tried, err := kong.Trace(parser, []string{startEtcd, "--" + strings.ToLower(strings.ReplaceAll(flag, "_", "-")) + "="})
		if err == nil {
			err = tried.Error
		}
		return fmt.Errorf("environment variable %s: %w", name, err)
	}
	return nil
}

// isOfService reports whether Kubernetes created the environment variable for a Service.
func isOfService(name string) bool {
	service := servicePattern.FindStringSubmatch(name)
	if service == nil {
		return false
	}
	_, has := os.LookupEnv(service[1] + "_SERVICE_HOST")
	return has
}

// EtcdVariables returns the sorted names of the environment variables with the prefix ETCD_, which plain etcd would
// read. EtcdVariables skips empty variables, the program's own variables, and the variables that Kubernetes creates
// for Services.
func EtcdVariables() (names []string) {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "ETCD_") && !strings.HasPrefix(name, prefix+"_") && value != "" && !isOfService(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// serviceURL matches the value of the _PORT variable that Kubernetes creates for each Service in the namespace.
var serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// ForgetServices unsets the environment variables that Kubernetes created for a Service but whose names match a flag,
// and returns their names. For example, a Service named "etcd-wrapper-etcd-client" sets ETCD_WRAPPER_ETCD_CLIENT_PORT
// to a URL. ForgetServices must be called before anything reads the environment.
func ForgetServices() (forgotten []string) {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		service, isPort := strings.CutSuffix(name, "_PORT")
		if _, has := os.LookupEnv(service + "_SERVICE_HOST"); !has || !isPort || !strings.HasPrefix(name, prefix+"_") || !serviceURL.MatchString(value) {
			continue
		}
		_ = os.Unsetenv(name) // fails only if the name is malformed
		forgotten = append(forgotten, name)
	}
	return forgotten
}

// variable returns the name of the environment variable that sets a flag.
func variable(flag string) string {
	return prefix + "_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// help prints the help of the program or of a command. A command's help omits global flags.
func help(options kong.HelpOptions, context *kong.Context) error {
	options.WrapUpperBound = helpWidth
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
	_, err := io.WriteString(context.Stdout, "\n"+manualOf(context.Model, selected))
	return err
}

// helpFlag converts the help command to the help flag: "help start-etcd" becomes "start-etcd --help".
func helpFlag(args []string) []string {
	if len(args) > 0 && args[0] == "help" {
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}
