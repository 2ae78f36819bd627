package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEtcdsToolsNeedNoFlags(t *testing.T) {
	sidecar, hostPort := newSidecar(t, singleMember(t))
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	sidecar.say("Successful")
	wrapper.await("/readyz")

	out, log, code := wrapper.run("etcdctl", "put", "greeting", "hello")
	assert.Zero(t, code, log)
	assert.Equal(t, "OK\n", out)
	out, log, code = wrapper.run("etcdctl", "get", "--prefix", "greet", "--print-value-only")
	assert.Zero(t, code, log)
	assert.Equal(t, "hello\n", out)
	_, _, code = wrapper.run("etcdctl", "--endpoints", "127.0.0.1:1", "--command-timeout=100ms", "get", "greeting")
	assert.NotZero(t, code, "an endpoint that is given is the one that is asked")

	out, log, code = wrapper.run("etcdutl", "version")
	assert.Zero(t, code, log)
	assert.Contains(t, out, "etcdutl version: 3.6")
	_, _, code = wrapper.run("etcdutl", "nonsense")
	assert.NotZero(t, code)
}
