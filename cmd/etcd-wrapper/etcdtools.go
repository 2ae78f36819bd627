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

// etcdctl and etcdutl are built into this program, because a distroless image has no other place for them. Like the
// main functions of etcdctl and etcdutl, these commands may exit the process on failure.

// etcdctlCommand runs etcd's client.
type etcdctlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments for etcdctl."`
}

func (c *etcdctlCommand) execute(s streams) exitcode.Code {
	return toolStatus(runEtcdctl(c.Args, s))
}

// etcdutlCommand runs etcdutl, which handles snapshots and data directories.
type etcdutlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments for etcdutl."`
}

func (c *etcdutlCommand) execute(s streams) exitcode.Code {
	return toolStatus(runEtcdutl(c.Args, s.out))
}

// toolStatus returns the exit status for an error that one of etcd's tools has already printed.
func toolStatus(err error) exitcode.Code {
	if err != nil {
		return exitcode.ToolFailed
	}
	return exitcode.Clean
}

// runEtcdctl runs etcdctl with args, and adds the member's endpoint and certificates unless they are already set. The
// returned error has already been printed by etcdctl.
func runEtcdctl(args []string, s streams) error {
	known, err := etcdctlSettings()
	hasEndpoints := slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--endpoints") })
	if err != nil && !hasEndpoints && needsMember(args) {
		s.report(zerolog.WarnLevel, "running etcdctl without the endpoint and certificates of this member", err)
	}
	os.Args = slices.Concat([]string{"etcdctl"}, missingFlags(known, args), args) // etcdctl only reads its arguments from os.Args
	return ctlv3.Start()
}

// needsMember reports whether etcdctl connects to etcd if it is run with these arguments.
func needsMember(args []string) bool {
	command := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	wantsHelp := slices.ContainsFunc(args, func(arg string) bool { return arg == "-h" || arg == "--help" })
	return command >= 0 && !wantsHelp && !slices.Contains([]string{"version", "help", "completion"}, args[command])
}

// A toolFlag is an etcdctl flag and its value.
type toolFlag struct{ flag, value string }

// clientAccess contains the settings in etcd's configuration that a client needs.
type clientAccess struct {
	Advertised string `json:"advertise-client-urls"`
	Security   struct {
		CertFile      string `json:"cert-file"`
		KeyFile       string `json:"key-file"`
		TrustedCAFile string `json:"trusted-ca-file"`
	} `json:"client-transport-security"`
}

// etcdctlSettings returns the flags that etcdctl needs to connect to the member. The wrapper's environment variables
// take precedence over the stored configuration.
func etcdctlSettings() ([]toolFlag, error) {
	var access clientAccess
	content, err := os.ReadFile(wrapperSetting("STORED_CONFIG_PATH", filepath.Join(os.Getenv("HOME"), "etcd.conf.yaml")))
	if err == nil {
		err = yaml.Unmarshal(content, &access)
	}
	if err != nil {
		err = fmt.Errorf("cannot read the stored configuration: %w; set ETCD_WRAPPER_STORED_CONFIG_PATH to its path, or set --endpoints", err)
	}
	known := []toolFlag{{"endpoints", access.endpoints()}}
	if !strings.HasPrefix(known[0].value, "http:") {
		known = append(known,
			toolFlag{"cacert", access.Security.TrustedCAFile},
			// etcdctl uses etcd's own certificate by default.
			toolFlag{"cert", wrapperSetting("ETCD_CLIENT_CERT_PATH", access.Security.CertFile)},
			toolFlag{"key", wrapperSetting("ETCD_CLIENT_KEY_PATH", access.Security.KeyFile)})
	}
	return known, err
}

// wrapperSetting returns the value of the environment variable for a start-etcd flag, or fallback if it is not set.
// Command-line flags are ignored, because they belong to etcdctl.
func wrapperSetting(name, fallback string) string {
	return cmp.Or(os.Getenv("ETCD_WRAPPER_"+name), fallback)
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

// missingFlags returns the settings that are neither in the arguments nor in etcdctl's environment. etcdctl rejects a
// setting that is set twice.
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

// runEtcdutl runs etcdutl, which prints its own errors.
func runEtcdutl(args []string, out io.Writer) error {
	root := &cobra.Command{Use: "etcdutl", Short: "An administrative command line tool for etcd3.", SilenceUsage: true}
	root.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple", "set the output format (fields, json, protobuf, simple, table)")
	// The main package of etcdutl has the same commands but cannot be imported.
	root.AddCommand(
		etcdutl.NewDefragCommand(),
		etcdutl.NewSnapshotCommand(),
		etcdutl.NewHashKVCommand(),
		etcdutl.NewVersionCommand(),
		etcdutl.NewCompletionCommand(),
		etcdutl.NewMigrateCommand(),
	)
	root.SetArgs(append([]string{}, args...)) // if args is nil, cobra uses the arguments of the process
	root.SetOut(out)                          // only for requested output; usage after an error goes to standard error
	root.SetErr(os.Stderr)
	command, err := root.ExecuteC()
	if err != nil {
		root.PrintErrln(command.UsageString())
	}
	return err
}

// completeTool completes the last argument of etcdctl or etcdutl. It prints one candidate per line, followed by
// cobra's directive, which the completion scripts ignore.
func completeTool(tool string, words []string, out io.Writer) {
	words = append([]string{cobra.ShellCompRequestCmd}, words...)
	if tool == "etcdutl" {
		_ = runEtcdutl(words, out) // an error message would garble the command line being completed
		return
	}
	os.Args = append([]string{tool}, words...)
	_ = ctlv3.Start() // an error message would garble the command line being completed
}
