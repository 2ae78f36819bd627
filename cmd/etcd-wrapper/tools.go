package main

import (
	"etcd-wrapper/cmd/etcdtools"
	"etcd-wrapper/exitcode"
)

// etcdctlCommand is etcd's own client.
type etcdctlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of etcdctl."`
}

func (c *etcdctlCommand) execute(s streams) exitcode.Code {
	return ofTool(etcdtools.Etcdctl(c.Args, s.logger()))
}

// etcdutlCommand is etcd's own tool for files.
type etcdutlCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of etcdutl."`
}

func (c *etcdutlCommand) execute(s streams) exitcode.Code {
	return ofTool(etcdtools.Etcdutl(c.Args, s.out))
}

// ofTool is the exit status of a tool, which has said what went wrong.
func ofTool(err error) exitcode.Code {
	if err != nil {
		return exitcode.ToolFailed
	}
	return exitcode.Clean
}
