package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/exitcode"
)

type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("by the test") }

func TestAPanicIsNeverTakenForAnEnd(t *testing.T) {
	assert.PanicsWithValue(t, "by the test", func() { run([]string{"--help"}, streams{out: panicking{}, log: panicking{}}) })
}

func TestHelpIsACleanEnd(t *testing.T) {
	var out, log bytes.Buffer
	assert.Equal(t, exitcode.Clean, run([]string{"start-etcd", "--help"}, streams{out: &out, log: &log}))
	assert.Contains(t, out.String(), "--volume-dir")
	assert.Empty(t, log.String())
}

// Kubernetes makes variables of Service names; the reference program knows flags with one dash.
func TestTheCommandLineIsReadAsGoReadsFlags(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_ETCD_CLIENT_PORT", "tcp://10.0.0.1:2379")
	t.Setenv("ETCD_WRAPPER_ETCD_READY_TIMEOUT", "")
	t.Setenv("ETCD_WRAPPER_LOG_LEVEL", "warn")
	selected, err := parse([]string{"start-etcd", "-etcd-client-port=2380", "-backup-restore-tls-enabled=false", "-backup-restore-host-port", "a:1"}, streams{})
	assert.NoError(t, err)
	start, ok := selected.(*startCommand)
	assert.True(t, ok)
	assert.EqualValues(t, 2380, start.EtcdClientPort)
	assert.Equal(t, "a:1", start.SidecarHostPort)
	assert.Equal(t, "warn", start.LogLevel, "a variable whose flag is not given counts")
	assert.Zero(t, start.EtcdReadyTimeout)
}

func TestTheArgumentsOfAnotherProgramAreLeftAlone(t *testing.T) {
	for _, args := range [][]string{
		{"etcdctl", "put", "key", "--", "-value"},
		{"etcdctl", "lock", "name", "--", "find", "-name", "x", "-type", "f"},
		{"etcdutl", "-etcd-server-name", "x"},
		{"start-etcd", "--", "-etcd-client-port", "1"},
	} {
		assert.Equal(t, args, asGoReadsFlags(args))
	}
	assert.Equal(t, []string{"start-etcd", "--etcd-server-name=etcdctl", "--etcd-client-port=1"},
		asGoReadsFlags([]string{"start-etcd", "-etcd-server-name", "etcdctl", "-etcd-client-port", "1"}), "a value is none")
}
