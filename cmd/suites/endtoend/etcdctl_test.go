package endtoend_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/suites/harness"
)

func TestEtcdctl_needsNoFlags(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartReady()

	out, log, code := p.Begin("etcdctl", "put", "greeting", "hello").Wait()
	assert.Zero(t, code, log)
	assert.Equal(t, "OK\n", out)
	out, log, code = p.Begin("etcdctl", "get", "--prefix", "greet", "--print-value-only").Wait()
	assert.Zero(t, code, log)
	assert.Equal(t, "hello\n", out)
	_, _, code = p.Begin("etcdctl", "--endpoints", "127.0.0.1:1", "--command-timeout=100ms", "get", "greeting").Wait()
	assert.NotZero(t, code, "etcdctl uses the given endpoint")

	out, log, code = p.Begin("etcdutl", "version").Wait()
	assert.Zero(t, code, log)
	assert.Contains(t, out, "etcdutl version: 3.6")
	_, _, code = p.Begin("etcdutl", "nonsense").Wait()
	assert.NotZero(t, code)
}
