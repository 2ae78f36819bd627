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
