package main

import (
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"

	"etcd-wrapper/exitcode"
)

// etcdutlCommand is etcd's own tool for files: snapshots, data directories.
type etcdutlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of etcdutl."`
}

// execute may not return: etcdutl ends the process itself when it fails.
func (c *etcdutlCommand) execute(s streams) exitcode.Code {
	root := &cobra.Command{Use: "etcdutl", Short: "An administrative command line tool for etcd3."}
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
	root.SetArgs(c.Args)
	root.SetOut(s.out)
	if err := root.Execute(); err != nil {
		return toolFailed // it has said why
	}
	return exitcode.Clean
}
