package faults_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/suites/harness"
)

const diskSize = 512 << 20

// The exit record must be flushed to disk before the process exits, and its removal must be flushed before etcd opens
// its data. A power loss at a later time then does not change whether the record exists.
func TestFaultPowerLoss_recordIsTrue(t *testing.T) {
	t.Parallel()
	trial(t, "stopped and serving", "power loss")
	p := harness.NewPod(t)
	d := harness.NewDisk(p, diskSize)
	run := p.StartAndStop("key", "before")

	d.CutPower(run)
	assert.Equal(t, "terminated", p.Record(), "the record of the clean stop survives the power loss")
	run = p.StartReady()
	p.Put("key", "after")

	d.CutPower(run)
	assert.NoFileExists(t, p.RecordPath(), "the removed record does not reappear")
	run = p.StartReady()
	assert.Equal(t, []string{"full", "sanity", "full"}, p.Sidecar.Modes())
	assert.Equal(t, "after", p.Get("key"))
	run.Shutdown()
}

// The crash loop cuts the power instead of killing the process, so that writes that have not been flushed are lost.
func TestFaultPowerLossLoop(t *testing.T) {
	t.Parallel()
	cycles := 2
	if *faults {
		cycles = 150
	}
	trial(t, "starting, written to, stopping", fmt.Sprintf("power loss, %d times", cycles))
	p := harness.NewPod(t)
	crashLoop(t, p, cycles, harness.NewDisk(p, diskSize).CutPower)
}
