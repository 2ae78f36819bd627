package etcdtools

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
)

// Etcdutl runs etcd's tool for files, snapshots and data directories, with its arguments. The tool has printed the error already.
func Etcdutl(args []string, out io.Writer) error {
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
