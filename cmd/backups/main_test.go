package backups

import (
	"os"
	"testing"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestMain(m *testing.M) {
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}
