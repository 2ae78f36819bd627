package main

import (
	"fmt"
	"runtime"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/member/dataversion"
)

// version is stamped by the Makefile.
var version = "unknown"

type versionCommand struct{}

func (*versionCommand) execute(s streams) exitcode.Code {
	fmt.Fprintf(s.out, "etcd-wrapper %s\netcd %s\n%s %s/%s\n", //nolint:errcheck // there is nobody left to tell
		version, dataversion.Embedded, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitcode.Clean
}
