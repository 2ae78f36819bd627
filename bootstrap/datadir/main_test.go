package datadir

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// childEtcd has the test binary run an etcd: `<test binary> child-etcd <data directory> <number of the last key>`.
const childEtcd = "child-etcd"

// TestMain doubles as the etcd that tests start as a child, to kill it.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == childEtcd {
		lastKey, _ := strconv.Atoi(os.Args[3])
		fmt.Fprintln(os.Stderr, writeUntilKilled(os.Args[2], lastKey))
		os.Exit(1)
	}
	if len(os.Args) == 4 && (os.Args[1] == childServe || os.Args[1] == childJudge) {
		run := func() error { return serve(os.Args[2], os.Args[3]) }
		if os.Args[1] == childJudge {
			run = func() error { return judge(os.Args[2]) }
		}
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

// writeUntilKilled runs an etcd, stores keys up to the last one, prints a line for each and never ends by itself. The last
// key is flushed to the database, so that it is ahead of what the WAL knows to be committed.
func writeUntilKilled(dir string, lastKey int) error {
	server, err := datadirtest.Start(dir)
	if err != nil {
		return err
	}
	client := v3client.New(server.Server)
	for i := range lastKey + 1 {
		if _, err := client.Put(context.Background(), fmt.Sprintf("key-%d", i), strings.Repeat("v", 500)); err != nil {
			return err
		}
		if i == lastKey {
			server.Server.Backend().ForceCommit()
		}
		fmt.Println("stored", i)
	}
	select {}
}
