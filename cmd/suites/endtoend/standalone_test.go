package endtoend_test

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/harness"
)

// standalone is a pod with no sidecar, and etcd's configuration in a file.
func standalone(t *testing.T) *harness.Pod {
	t.Helper()
	p := harness.NewPodWithLateSidecar(t)
	delete(p.Config, "data-dir") // it is --volume-dir's then
	text, err := yaml.Marshal(p.Config)
	require.NoError(t, err)
	file := filepath.Join(p.Dir, "etcd.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	p.Flags = []string{"--standalone", "--etcd-config-file=" + file}
	return p
}

// validated says which validations a run did.
func validated(run *harness.Run) (modes []string) {
	for _, begun := range run.Log.Matching(harness.Line{"message": "validation begins"}) {
		modes = append(modes, begun["mode"].(string))
	}
	return modes
}

func TestStandaloneKeepsItsKeysAndItsRecord(t *testing.T) {
	t.Parallel()
	p := standalone(t)
	first := p.StartReady()
	p.Put("key", "value")
	assert.Equal(t, []string{"full"}, validated(first))
	status, _ := first.Stop(syscall.SIGINT)
	require.Equal(t, 0, status)
	require.Equal(t, "interrupt", p.Record())

	second := p.StartReady()
	assert.Equal(t, []string{"sanity"}, validated(second))
	assert.Equal(t, "value", p.Get("key"))
	p.Put("key", "another value")
	second.Kill()

	third := p.StartReady()
	assert.Equal(t, []string{"full"}, validated(third))
	assert.Equal(t, "another value", p.Get("key"))
	third.StopCleanly()
}

func TestStandaloneVisitsTheSameStates(t *testing.T) {
	t.Parallel()
	p := standalone(t)
	run := p.StartAndStop()
	assert.Equal(t, []string{
		"Query", "Trigger", "Wait", "Query", "FetchConfig", "StartEtcd", "Serving", "Terminating", "Terminated",
	}, run.Log.States())
}

func TestStandaloneReportsCorruptDataAndLeavesItAlone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(run *harness.Run){
		"after a clean stop": func(run *harness.Run) { run.StopCleanly() }, "after kill -9": (*harness.Run).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := standalone(t)
			first := p.StartReady()
			p.Put("key", "value")
			end(first)
			harness.FlipBits(t, p.Database(), 0, 16<<10)
			before := tree(p)
			delete(before, p.RecordPath()+".crash") // what a killed run armed, a stopped one puts away

			second := p.Start()
			second.AwaitLine(harness.Line{"event": "replied", "to": "Wait", "message": "is corrupt or cannot be used: database " + p.Database(), "level": "warn"})
			second.AwaitLine(harness.Line{"message": "validation ended", "verdict": "Failed", "level": "error"})
			assert.Equal(t, http.StatusServiceUnavailable, second.Readyz())
			status, took := second.Stop(syscall.SIGTERM)
			assert.Equal(t, 0, status)
			assert.Less(t, took, harness.AbortBudget)
			assert.NotContains(t, second.Log.States(), "FetchConfig")
			after := tree(p)
			delete(before, p.RecordPath()+".last") // each run tells how it ended
			delete(after, p.RecordPath()+".last")
			delete(before, p.RecordPath()+".last.tmp") // a killed run may have been about to
			assert.Equal(t, before, after, "nothing on disk has changed")
		})
	}
}
