package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// standalone is a place with no sidecar, and etcd's configuration in a file.
func standalone(t *testing.T) *place {
	t.Helper()
	p := placeWithoutSidecar(t)
	delete(p.config, "data-dir") // it is --volume-dir's then
	text, err := yaml.Marshal(p.config)
	require.NoError(t, err)
	file := filepath.Join(p.dir, "etcd.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	p.flags = []string{"--standalone", "--etcd-config-file=" + file}
	return p
}

// validated says which validations a run did.
func (w *wrapper) validated() (modes []string) {
	for _, begun := range w.log.matching(line{"message": "validation begins"}) {
		modes = append(modes, begun["mode"].(string))
	}
	return modes
}

func TestStandaloneKeepsItsKeysAndItsRecord(t *testing.T) {
	t.Parallel()
	p := standalone(t)
	first := p.start()
	first.awaitReady()
	p.put("key", "value")
	assert.Equal(t, []string{"full"}, first.validated())
	status, _ := first.stop(syscall.SIGINT)
	require.Equal(t, 0, status)
	require.Equal(t, "interrupt", p.record())

	second := p.start()
	second.awaitReady()
	assert.Equal(t, []string{"sanity"}, second.validated())
	assert.Equal(t, "value", p.get("key"))
	p.put("key", "another value")
	second.kill()

	third := p.start()
	third.awaitReady()
	assert.Equal(t, []string{"full"}, third.validated())
	assert.Equal(t, "another value", p.get("key"))
	third.stopCleanly()
}

func TestStandaloneVisitsTheSameStates(t *testing.T) {
	t.Parallel()
	p := standalone(t)
	w := p.start()
	w.awaitReady()
	w.stopCleanly()
	assert.Equal(t, []string{
		"Query", "Trigger", "Wait", "Query", "FetchConfig", "StartEtcd", "Serving", "Terminating", "Terminated",
	}, w.log.states())
}

func TestStandaloneReportsCorruptDataAndLeavesItAlone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *wrapper){
		"after a clean stop": (*wrapper).stopCleanly, "after kill -9": (*wrapper).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := standalone(t)
			first := p.start()
			first.awaitReady()
			p.put("key", "value")
			end(first)
			flipBits(t, p.database(), 0, 16<<10)
			before := p.tree()
			delete(before, p.recordPath()+".crash") // what a killed run armed, a stopped one puts away

			second := p.start()
			second.awaitLine(line{"event": "replied", "to": "Wait", "message": "Failed"})
			second.awaitLine(line{"message": "validation ended", "verdict": "Failed", "level": "error"})
			assert.Equal(t, http.StatusServiceUnavailable, second.readyz())
			status, took := second.stop(syscall.SIGTERM)
			assert.Equal(t, 0, status)
			assert.Less(t, took, abortBudget)
			assert.NotContains(t, second.log.states(), "FetchConfig")
			assert.Equal(t, before, p.tree(), "nothing on disk has changed")
		})
	}
}
