package endtoend_test

import (
	"maps"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// validated returns the modes of the validations that a run has started.
func validated(run *harness.Run) (modes []string) {
	for _, line := range run.Log.Matching(harness.Line{"message": "starting validation"}) {
		modes = append(modes, line["mode"].(string))
	}
	return modes
}

func TestStandalone_keysAndRecord(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	first := p.StartReady()
	p.Put("key", "value")
	assert.Equal(t, []string{"full"}, validated(first))
	require.Len(t, first.Log.FindText("is empty; creating a new cluster"), 1, "the log reports the new cluster, because the volume could also have been lost")
	require.True(t, first.Status().NewCluster)
	status, _ := first.Stop(syscall.SIGINT)
	require.Equal(t, 0, status)
	require.Equal(t, "interrupt", p.Record())
	assert.Equal(t, []string{"Query", "Trigger", "Wait", "Query", "FetchConfig", "StartEtcd", "Serving", "Terminating", "Terminated"}, states(first))

	second := p.StartReady()
	assert.Equal(t, []string{"sanity"}, validated(second))
	assert.Empty(t, second.Log.FindText("a new cluster"))
	assert.False(t, second.Status().NewCluster)
	assert.Equal(t, "value", p.Get("key"))
	p.Put("key", "another value")
	second.Kill()

	third := p.StartReady()
	assert.Equal(t, []string{"full"}, validated(third))
	assert.Equal(t, "another value", p.Get("key"))
	third.Shutdown()
}

func TestStandalone_corruptDataIsKept(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(run *harness.Run){
		"after a clean stop": func(run *harness.Run) { run.Shutdown() }, "after kill -9": (*harness.Run).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewStandalonePod(t, nil)
			first := p.StartReady()
			p.Put("key", "value")
			end(first)
			harness.CorruptFile(t, p.DBPath(), 0, 16<<10)
			before := tree(p)
			delete(before, p.RecordPath()+".crash") // a killed run leaves this file behind, and the next run removes it

			p.ExpectTerminationMessage()
			second := p.Start()
			assert.Equal(t, 70, second.Exit(harness.Patience))
			second.AwaitLine(harness.Line{"message": "validation ended", "result": "Failed", "level": "error"})
			message := terminationMessage(p)
			assert.Contains(t, message, "there is no backup to restore")
			assert.Contains(t, message, "is corrupt or unusable: database "+p.DBPath())
			assert.NotContains(t, states(second), "FetchConfig")
			after := tree(p)
			delete(before, p.RecordPath()+".last") // rewritten by every run
			delete(after, p.RecordPath()+".last")
			delete(before, p.RecordPath()+".last.tmp") // a killed run may leave this file behind, and the next run replaces it
			assert.Equal(t, before, after, "the volume has not changed")
		})
	}
}

func TestSharedConfigFile(t *testing.T) {
	t.Parallel()
	p := harness.NewStandalonePod(t, nil)
	pods := map[string]any{
		"name": "etcd-config", "initial-cluster": "",
		"initial-advertise-peer-urls": map[string]any{"shoot-etcd-main-0": []string{p.PeerURL()}},
		"advertise-client-urls":       map[string]any{"shoot-etcd-main-0": []string{p.Endpoint()}},
		"member-name-prefix":          "shoot",
	}
	maps.Copy(p.Config, pods)
	p.WriteConfigFile()
	p.Env = []string{"POD_NAME=etcd-main-0"}
	run := p.StartReady()
	p.Put("key", "value")
	members, err := p.Etcd().MemberList(t.Context())
	require.NoError(t, err)
	require.Len(t, members.Members, 1)
	assert.Equal(t, "shoot-etcd-main-0", members.Members[0].Name)
	run.Shutdown()

	p.Env = []string{"POD_NAME=etcd-main-1"}
	run = p.Start()
	require.Equal(t, 78, run.Exit(harness.Patience))
	run.AwaitLine(harness.Line{"message": `has no URLs for this member ("shoot-etcd-main-1"`, "level": "error"})
}
