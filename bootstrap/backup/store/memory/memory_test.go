package memory

import (
	"testing"

	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(*testing.T) store.Store { return New() }, Whole: true, Holds: true})
}
