package harness

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFailure_showsTheWrappersLog(t *testing.T) {
	log := &Log{}
	log.add([]byte(`{"level":"info","time":"now","message":"ours"}` + "\n"))
	log.add([]byte(`{"level":"info","time":"now","component":"etcd","message":"theirs"}` + "\n"))
	log.add([]byte("no JSON\n"))
	assert.Equal(t, `{"level":"info","time":"now","message":"ours"}`+"\nno JSON\n(1 of etcd's own log lines omitted; -all-logs prints them)\n", log.summary())
	assert.Len(t, log.bad, 1)
	*allLogs = true
	defer func() { *allLogs = false }()
	assert.Contains(t, log.summary(), "theirs")
}
