package endtoend_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// listenOn listens on a port until the end of the test.
func listenOn(t *testing.T, port int) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() }) // the test may have closed the listener
	return listener
}

func TestInvalidConfiguration(t *testing.T) {
	t.Parallel()
	for key, invalidate := range map[string]func(config map[string]any){
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
			p := harness.NewPod(t)
			invalidate(p.Config)
			p.WriteRecord("terminated")
			same := unchangedFile(t, p.RecordPath())
			require.NoError(t, os.WriteFile(p.TerminationMessage(), []byte("previous message"), 0o600))
			run := p.Start()
			require.Equal(t, 78, run.Exit(harness.Patience))
			same()
			p.RequireNoData()
			oneInitialization(p)
			lines := run.Log.Matching(harness.Line{"event": "config invalid", "level": "error"})
			require.Len(t, lines, 1)
			assert.Contains(t, lines[0]["message"], key, "the message names the key")
			left := terminationMessage(p)
			assert.Contains(t, left, key, "the termination message names the key")
			assert.NotContains(t, left, "previous message")
		})
	}
}

func TestPortInUse_wrapper(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WriteRecord("terminated")
	same := unchangedFile(t, p.RecordPath())
	listenOn(t, p.Port)
	run := p.Start()
	require.Equal(t, 69, run.Exit(harness.Patience))
	same()
	p.RequireNoData()
	assert.Empty(t, p.Sidecar.Filter(func(harness.Request) bool { return true }), "the sidecar receives no request")
	assert.NotEmpty(t, run.Log.FindText("address already in use"))
}

// A start that cannot bind one of etcd's ports must keep the exit record, because etcd binds its ports before it opens
// its data. The next start then needs only a sanity validation.
func TestPortInUse_etcd(t *testing.T) {
	t.Parallel()
	for name, port := range map[string]func(p *harness.Pod) int{
		"of clients": func(p *harness.Pod) int { return p.ClientPort },
		"of peers":   func(p *harness.Pod) int { return p.PeerPort },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			p.StartAndStop()
			taken := listenOn(t, port(p))
			first := p.Start()
			require.Equal(t, 70, first.Exit(harness.Patience))
			assert.Equal(t, "terminated", p.Record())
			assert.NotEmpty(t, first.Log.Matching(harness.Line{"event": "etcd failed", "message": "address already in use"}))

			require.NoError(t, taken.Close())
			second := p.StartReady()
			assert.Equal(t, []string{"full", "sanity", "sanity"}, p.Sidecar.Modes())
			second.Shutdown()
		})
	}
}

func TestUnreadableData_crashWithReason(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	harness.CorruptFile(t, p.DBPath(), 0, 16<<10)

	p.ExpectTerminationMessage()
	second := p.Start()
	require.Equal(t, 2, second.Exit(harness.Patience))
	require.NoFileExists(t, p.RecordPath(), "a crash leaves no exit record")
	assert.NotContains(t, states(second), "Serving")
	assert.Contains(t, terminationMessage(p), "crash: ")

	third := p.Start()
	require.Equal(t, 2, third.Exit(harness.Patience))
	lines := third.Log.Matching(harness.Line{"message": "the last run on this volume crashed"})
	require.Len(t, lines, 1)
	assert.NotEmpty(t, lines[0]["reason"])
	assert.Equal(t, []string{"full", "sanity", "full"}, p.Sidecar.Modes())
}

func TestVolumeIsAFile(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	require.NoError(t, os.Remove(p.Volume))
	require.NoError(t, os.WriteFile(p.Volume, nil, 0o600))
	run := p.Start()
	assert.Equal(t, 64, run.Exit(harness.Patience), "exit status of a start that would fail again")
	run.AwaitLine(harness.Line{"level": "error", "message": p.Volume})
	assert.Empty(t, p.Sidecar.Filter(func(harness.Request) bool { return true }))
}
