package backup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/ack"
)

func TestUnconfirmed_saysWhyTheGateIsClosed(t *testing.T) {
	gate := ack.NewGate()
	b := backup.New(backup.Options{Store: memory.New(), Keys: &format.Keys{}, Ack: gate})
	assert.Contains(t, b.Unconfirmed(), "clients wait: this process has uploaded nothing in the last minute")
	gate.Confirm(1, 0, time.Now())
	assert.Empty(t, b.Unconfirmed())
	gate.Confirm(1, 0, time.Now().Add(-ack.Validity))
	assert.Contains(t, b.Unconfirmed(), "uploaded nothing in the last minute", "not that it never has")

	b = backup.New(backup.Options{Store: memory.New(), Keys: &format.Keys{}})
	assert.Empty(t, b.Unconfirmed(), "nobody waits")
}
