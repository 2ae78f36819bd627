package standalone

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"etcd-wrapper/bootstrap"
)

// TestMain doubles as the program that tests start as a child: `<test binary> child-<what> <data directory> <mode>`. For
// child-etcd the mode is the number of the last key to store.
func TestMain(m *testing.M) {
	wal.SegmentSizeBytes = 64 << 10 // several segments without many keys
	if len(os.Args) == 4 && strings.HasPrefix(os.Args[1], "child-") {
		os.Exit(runAsChild(os.Args[1], os.Args[2], bootstrap.Mode(os.Args[3])))
	}
	status := m.Run()
	_ = os.RemoveAll(pristineRoot)
	os.Exit(status)
}

func runAsChild(what, dataDir string, mode bootstrap.Mode) int {
	switch what {
	case "child-verify":
		return RunChild(context.Background(), dataDir, mode, os.Stdout)
	case "child-etcd":
		lastKey, _ := strconv.Atoi(string(mode))
		return writeUntilKilled(dataDir, lastKey)
	case "child-panic":
		fmt.Fprintln(os.Stderr, strings.Repeat("noise\n", 100))
		panic("the page is on fire " + strings.Repeat("!", 1<<20))
	case "child-hang":
		time.Sleep(time.Hour)
	case "child-silent":
		return childValid
	case "child-liar":
		fmt.Println(`{"valid":true}`)
		return 3
	}
	return 4
}

// child returns a VerifyFunc that starts this test binary as a child.
func child(what string) VerifyFunc {
	return InChild(os.Args[0], func(dataDir string, mode bootstrap.Mode) []string {
		return []string{what, dataDir, string(mode)}
	})
}
