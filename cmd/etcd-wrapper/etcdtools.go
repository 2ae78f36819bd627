package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/exitcode"
)

// etcd's own tools, etcdctl and etcdutl, are within this program: a distroless image has no other place for them. Both may end the
// process themselves when they fail, as their own main functions do.

// etcdctlCommand is etcd's own client.
type etcdctlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of etcdctl."`
}

func (c *etcdctlCommand) execute(s streams) exitcode.Code {
	return ofTool(runEtcdctl(c.Args, s.logger()))
}

// etcdutlCommand is etcd's own tool for files.
type etcdutlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of etcdutl."`
}

func (c *etcdutlCommand) execute(s streams) exitcode.Code {
	return ofTool(runEtcdutl(c.Args, s.out))
}

// ofTool is the exit status of a tool, which has said what went wrong.
func ofTool(err error) exitcode.Code {
	if err != nil {
		return exitcode.ToolFailed
	}
	return exitcode.Clean
}

// runEtcdctl runs etcd's client with its arguments. What the wrapper knows of the member, its endpoint and certificates, is
// filled in unless it is given. etcdctl has printed the error already.
func runEtcdctl(args []string, log zerolog.Logger) error {
	known, err := etcdctlSettings()
	toldWhere := slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--endpoints") })
	if err != nil && !toldWhere && needsMember(args) {
		log.Warn().Err(err).Msg("etcdctl gets no endpoint and certificates from the stored configuration")
	}
	os.Args = slices.Concat([]string{"etcdctl"}, missingFlags(known, args), args) // the tool reads them there and nowhere else
	return ctlv3.Start()
}

// needsMember reports whether etcdctl will talk to etcd, as far as its arguments show.
func needsMember(args []string) bool {
	command := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	asksForHelp := slices.ContainsFunc(args, func(arg string) bool { return arg == "-h" || arg == "--help" })
	return command >= 0 && !asksForHelp && !slices.Contains([]string{"version", "help", "completion"}, args[command])
}

// toolFlag is a flag of etcdctl with its value.
type toolFlag struct{ flag, value string }

// clientAccess is what etcd's configuration says about reaching the member.
type clientAccess struct {
	Advertised string `json:"advertise-client-urls"`
	Security   struct {
		CertFile      string `json:"cert-file"`
		KeyFile       string `json:"key-file"`
		TrustedCAFile string `json:"trusted-ca-file"`
	} `json:"client-transport-security"`
}

// etcdctlSettings are what etcdctl should use. The wrapper's environment takes precedence over the stored configuration.
func etcdctlSettings() ([]toolFlag, error) {
	var access clientAccess
	content, err := os.ReadFile(wrapperSetting("STORED_CONFIG_PATH", filepath.Join(os.Getenv("HOME"), "etcd.conf.yaml")))
	if err == nil {
		err = yaml.Unmarshal(content, &access)
	}
	if err != nil {
		err = fmt.Errorf("cannot use the stored configuration: %w", err)
	}
	known := []toolFlag{{"endpoints", access.endpoints()}}
	if !strings.HasPrefix(known[0].value, "http:") {
		known = append(known,
			toolFlag{"cacert", access.Security.TrustedCAFile},
			// etcd's own certificate, where no other is known.
			toolFlag{"cert", wrapperSetting("ETCD_CLIENT_CERT_PATH", access.Security.CertFile)},
			toolFlag{"key", wrapperSetting("ETCD_CLIENT_KEY_PATH", access.Security.KeyFile)})
	}
	return known, err
}

// wrapperSetting is a setting of start-etcd, by its name in the environment. It cannot be given as a flag here: all flags are
// etcdctl's.
func wrapperSetting(name, otherwise string) string {
	return cmp.Or(os.Getenv("ETCD_WRAPPER_"+name), otherwise)
}

func (a clientAccess) endpoints() string {
	name := wrapperSetting("ETCD_SERVER_NAME", "")
	if name == "" {
		return a.Advertised
	}
	scheme := "http://"
	if wrapperSetting("ETCD_CLIENT_CERT_PATH", a.Security.CertFile) != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(name, wrapperSetting("ETCD_CLIENT_PORT", "2379"))
}

// missingFlags are the settings that are known and neither among the arguments nor in etcdctl's own environment: etcdctl does
// not allow a value to be given twice.
func missingFlags(known []toolFlag, args []string) []string {
	var flags []string
	for _, s := range known {
		flag := "--" + s.flag
		given := slices.ContainsFunc(args, func(arg string) bool { return arg == flag || strings.HasPrefix(arg, flag+"=") })
		if _, set := os.LookupEnv("ETCDCTL_" + strings.ToUpper(s.flag)); !given && !set && s.value != "" {
			flags = append(flags, flag+"="+s.value)
		}
	}
	return flags
}

// runEtcdutl runs etcd's tool for files, snapshots and data directories, with its arguments. The tool has printed the error already.
func runEtcdutl(args []string, out io.Writer) error {
	root := &cobra.Command{Use: "etcdutl", Short: "An administrative command line tool for etcd3.", SilenceUsage: true}
	root.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple", "set the output format (fields, json, protobuf, simple, table)")
	// The same as its own main package adds, which cannot be imported.
	root.AddCommand(
		etcdutl.NewDefragCommand(),
		etcdutl.NewSnapshotCommand(),
		etcdutl.NewHashKVCommand(),
		etcdutl.NewVersionCommand(),
		etcdutl.NewCompletionCommand(),
		etcdutl.NewMigrateCommand(),
	)
	root.SetArgs(append([]string{}, args...)) // nil would be those of the process
	root.SetOut(out)                          // what was asked for; unasked-for usage goes where errors go
	root.SetErr(os.Stderr)
	command, err := root.ExecuteC()
	if err != nil {
		root.PrintErrln(command.UsageString())
	}
	return err
}

// completeTool returns what the last of words, arguments of one of etcd's tools, can become: a line for each candidate.
func completeTool(tool string, words []string) string {
	words = append([]string{cobra.ShellCompRequestCmd}, words...)
	return outputOf(func() {
		if tool == "etcdutl" {
			_ = runEtcdutl(words, os.Stdout) // an error has no place in the middle of a command line
			return
		}
		os.Args = append([]string{tool}, words...)
		_ = ctlv3.Start() // as above
	})
}

// outputOf returns what a function prints to the process's standard output, without the directive for shells that cobra ends it with.
// What it prints to standard error is dropped.
func outputOf(print func()) string {
	read, write, err := os.Pipe()
	if err != nil {
		return ""
	}
	printed := make(chan string)
	go func() {
		text, _ := io.ReadAll(read)
		printed <- string(text)
	}()
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout = write
	os.Stderr, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	print()
	os.Stdout, os.Stderr = stdout, stderr
	_ = write.Close() // nothing is buffered
	text := <-printed
	if i := strings.LastIndex("\n"+text, "\n:"); i >= 0 {
		text = text[:i]
	}
	return text
}
