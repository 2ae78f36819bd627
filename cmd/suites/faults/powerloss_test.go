package faults_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/suites/harness"
)

const diskSize = 512 << 20

// The record must be flushed to disk before the process exits, and its removal before etcd opens its data.
func TestFaultPowerLoss_recordIsTrue(t *testing.T) {
	t.Parallel()
	trial(t, "stopped, serving", "power loss")
	p := harness.NewPod(t)
	d := harness.NewDisk(p, diskSize)
	run := p.StartAndStop("key", "before")

	d.CutPower(run)
	assert.Equal(t, "terminated", p.Record(), "the record of a clean end")
	run = p.StartReady()
	p.Put("key", "after")

	d.CutPower(run)
	assert.NoFileExists(t, p.RecordPath(), "the record from before etcd was opened")
	run = p.StartReady()
	assert.Equal(t, []string{"full", "sanity", "full"}, p.Sidecar.Modes())
	assert.Equal(t, "after", p.Get("key"))
	run.Shutdown()
}

// The crash loop simulates power losses, in which writes that the operating system has not flushed are lost as well.
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
