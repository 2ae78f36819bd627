package runtime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/recovery"
)

func TestRecoveryProgress(t *testing.T) {
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for expected, test := range map[string]recovery.Progress{
		"recovery has been reading the store since 2026-11-22T12:00:00Z: the store is unreachable": {State: recovery.AskStore, Since: noon, Reason: "the store is unreachable"},
		"recovery has been restoring since 2026-11-22T12:00:00Z: the volume has enough space":      {State: recovery.Build, Since: noon, Reason: "the volume has enough space"},
		"recovery has been restoring since 2026-11-22T12:00:00Z: restored 1.0 MiB of about 4.0 MiB at 512 KiB/s, 6s left": {
			State: recovery.Build, Since: noon, Reason: "the volume has enough space", Bytes: 1 << 20, Of: 4 << 20, Rate: 1 << 19,
		},
		"": {State: recovery.Ready, Since: noon, Reason: "the restored data is installed"},
	} {
		assert.Equal(t, expected, describeRecovery(test))
	}
	assert.Empty(t, (&Runtime{}).RecoveryProgress())
}
