package endtoend_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// members enables all tests about lost members instead of a selection. "make test-recovery" sets this flag.
var members = flag.Bool("members", false, "run all tests about lost members")

// onlyWithMembers skips a slow test unless -members is set.
func onlyWithMembers(t *testing.T) {
	t.Helper()
	if !*members {
		t.Skip("skipped: part of make test-recovery")
	}
}

// three is a cluster of members without sidecars, usually three, that contains one key.
type three struct {
	*testing.T

	pods []*harness.Pod
	runs []*harness.Run
}

func newThree(t *testing.T) *three {
	t.Helper()
	return startThree(t, harness.StandaloneMembers(t, 3))
}

func startThree(t *testing.T, pods []*harness.Pod, flags ...string) *three {
	t.Helper()
	for _, p := range pods {
		p.Flags = append(p.Flags, flags...)
	}
	c := &three{T: t, pods: pods, runs: harness.StartAll(pods)}
	c.pods[0].Put("key", "value")
	return c
}

// requireAllVoters requires that all members are started voters, and that the third one serves the cluster's key.
func (c *three) requireAllVoters() {
	c.Helper()
	out, log, code := c.pods[0].Begin("etcdctl", "member", "list").Wait()
	require.Zero(c, code, log)
	assert.Equal(c, len(c.pods), strings.Count(out, ", started, "), "%s", out)
	assert.Equal(c, len(c.pods), strings.Count(out, ", false"), "number of members that are not learners:\n%s", out)
	assert.Equal(c, "value", c.pods[2].Get("key"))
}

func emptyVolume(p *harness.Pod) {
	p.T.Helper()
	require.NoError(p.T, os.RemoveAll(p.Volume))
}

// storedThree starts three members that share a backup store, and waits until the store contains all writes.
func storedThree(t *testing.T) *three {
	t.Helper()
	return stored(t, harness.StandaloneMembers(t, 3))
}

func stored(t *testing.T, pods []*harness.Pod) *three {
	t.Helper()
	store := filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.Mkdir(store, 0o700))
	c := startThree(t, pods, "--backup-store=file://"+store, "--backup-interval=200ms")
	c.runs[0].AwaitStored(c.pods[0].Revision())
	return c
}

// restart starts all members at the same time and waits until all of them are ready.
func (c *three) restart(flags ...string) (runs []*harness.Run) {
	c.Helper()
	runs = harness.StartAll(c.pods, flags...)
	c.requireAllVoters()
	return runs
}
