package main

import (
	"fmt"
	"runtime"

	etcd "go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/exitcode"
)

// version is stamped by the Makefile.
var version = "unknown"

type versionCommand struct{}

func (*versionCommand) execute(s streams) exitcode.Code {
	fmt.Fprintf(s.out, "etcd-wrapper %s\netcd %s\n%s %s/%s\n", //nolint:errcheck // there is nobody left to tell
		version, etcd.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitcode.Clean
}
