package memory

import (
	"testing"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open: func(*testing.T) store.Store { return New() }, SinglePiece: true, InMemory: true,
	})
}
