package main_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInvalidConfigurationIsNamedAndChangesNothing(t *testing.T) {
	t.Parallel()
	for key, spoil := range map[string]func(config map[string]any){
		"listen-client-urls":    func(c map[string]any) { c["listen-client-urls"] = "foo" },
		"listen-peer-urls":      func(c map[string]any) { c["listen-peer-urls"] = "http://a b:1" },
		"advertise-client-urls": func(c map[string]any) { c["advertise-client-urls"] = []int{1} },
		"data-dir":              func(c map[string]any) { delete(c, "data-dir") },
		"initial-cluster":       func(c map[string]any) { c["initial-cluster"] = "someone-else=http://127.0.0.1:1" },
		"key-file": func(c map[string]any) {
			c["listen-client-urls"] = "https://127.0.0.1:1"
			c["client-transport-security"] = map[string]any{"cert-file": "/nowhere.crt"}
		},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			spoil(p.config)
			p.writeRecord("terminated")
			same := untouched(t, p.recordPath())
			require.NoError(t, os.WriteFile(p.termination(), []byte("of the last container"), 0o600))
			w := p.start()
			require.Equal(t, 78, w.exit(soon))
			same()
			p.neverOpened()
			p.oneInitialization()
			said := w.log.matching(line{"event": "config invalid", "level": "error"})
			require.Len(t, said, 1)
			assert.Contains(t, said[0]["message"], key, "the sentence names the key")
			left, err := os.ReadFile(p.termination())
			require.NoError(t, err)
			assert.Contains(t, string(left), key, "so does the termination message")
			assert.NotContains(t, string(left), "of the last container")
		})
	}
}

func TestOwnPortThatIsTaken(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.writeRecord("terminated")
	same := untouched(t, p.recordPath())
	occupy(t, p.port)
	w := p.start()
	require.Equal(t, 69, w.exit(soon))
	same()
	p.neverOpened()
	assert.Empty(t, p.sidecar.filter(func(request) bool { return true }), "the sidecar is not asked")
	assert.NotEmpty(t, w.log.containing("address already in use"))
}

func TestEtcdsPortThatIsTaken(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.writeRecord("terminated")
	taken := occupy(t, p.peer)
	first := p.start()
	require.Equal(t, 70, first.exit(soon))
	require.NoFileExists(t, p.recordPath(), "etcd was started and did not close in order")
	assert.NotEmpty(t, first.log.matching(line{"event": "etcd failed", "message": "address already in use"}))

	require.NoError(t, taken.Close())
	second := p.start()
	second.awaitReady()
	assert.Equal(t, []string{"sanity", "full"}, p.sidecar.modes())
	second.stopCleanly()
}

func TestDataThatEtcdCannotReadIsACrashThatLeavesItsReason(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.start()
	first.awaitReady()
	first.stopCleanly()
	flipBits(t, p.database(), 0, 16<<10)

	require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
	second := p.start()
	require.Equal(t, 2, second.exit(soon))
	require.NoFileExists(t, p.recordPath(), "never looks clean")
	assert.NotContains(t, second.log.states(), "Serving")
	left, err := os.ReadFile(p.termination())
	require.NoError(t, err)
	assert.Contains(t, string(left), "crash: ")

	third := p.start()
	require.Equal(t, 2, third.exit(soon))
	said := third.log.matching(line{"message": "the last run on this volume crashed"})
	require.Len(t, said, 1)
	assert.NotEmpty(t, said[0]["reason"])
	assert.Equal(t, []string{"full", "sanity", "full"}, p.sidecar.modes())
}

func TestVolumeThatIsAFileIsSaidSo(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, os.Remove(p.volume))
	require.NoError(t, os.WriteFile(p.volume, nil, 0o600))
	w := p.start()
	w.awaitLine(line{"event": "volume busy", "message": p.volume})
	status, _ := w.stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Empty(t, p.sidecar.filter(func(request) bool { return true }))
}
