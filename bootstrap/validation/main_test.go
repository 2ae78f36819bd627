package validation

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// TestMain doubles as the program that tests start as a child: `<test binary> child-<what> <data directory> <mode>`.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && strings.HasPrefix(os.Args[1], "child-") {
		os.Exit(runAsChild(os.Args[1], os.Args[2], bootstrap.Mode(os.Args[3])))
	}
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

func runAsChild(what, dataDir string, mode bootstrap.Mode) int {
	switch what {
	case "child-verify":
		return RunChild(context.Background(), dataDir, mode, os.Stdout)
	case "child-panic":
		fmt.Fprintln(os.Stderr, strings.Repeat("noise\n", 100))
		panic("the page is on fire " + strings.Repeat("!", 1<<20))
	case "child-hang":
		time.Sleep(time.Hour)
	case "child-silent":
		return childValid
	case "child-starved", "child-fault", "child-overflow":
		why := map[string]string{"child-starved": "newosproc", "child-fault": "fault", "child-overflow": "stack overflow"}[what]
		fmt.Fprintf(os.Stderr, "runtime: noise\nfatal error: %s\n\nruntime stack:\n", why)
		return 2
	case "child-liar":
		fmt.Println(`{"valid":true}`)
		return 3
	}
	return 4
}

// child returns a Func that starts this test binary as a child.
func inChild(what string) Func {
	return InChild(os.Args[0], func(dataDir string, mode bootstrap.Mode) []string {
		return []string{what, dataDir, string(mode)}
	})
}
