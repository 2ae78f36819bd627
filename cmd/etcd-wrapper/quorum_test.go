package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two of three members are missing, so that etcd never becomes ready.
func TestAStartWithoutAQuorumSaysWhatItWaitsFor(t *testing.T) {
	config := singleMember(t)
	config = strings.Replace(config, "initial-cluster: ", "initial-cluster: b=http://127.0.0.1:1,c=http://127.0.0.1:2,", 1)
	sidecar, hostPort := newSidecar(t, config)
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	sidecar.say("Successful")
	wrapper.enters("StartEtcd")
	out := ""
	require.Eventually(t, func() bool {
		out, _, _ = wrapper.run("status")
		return strings.Contains(out, "waits for a leader, which needs a quorum")
	}, patience, 50*time.Millisecond, &out)
	assert.Contains(t, out, "StartEtcd, not ready\n")
	assert.Zero(t, wrapper.stop())
}
