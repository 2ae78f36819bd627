package endtoend_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

// oddRecords lists what may be at the exit record's path instead of a valid record.
var oddRecords = map[string]func(t *testing.T, path string){
	"a symbolic link to a clean word": func(t *testing.T, path string) {
		require.NoError(t, os.WriteFile(path+".target", []byte("terminated"), 0o600))
		require.NoError(t, os.Symlink(path+".target", path))
	},
	"a symbolic link to nothing": func(t *testing.T, path string) { require.NoError(t, os.Symlink("/nowhere", path)) },
	"a FIFO":                     func(t *testing.T, path string) { require.NoError(t, unix.Mkfifo(path, 0o600)) },
	"a directory":                func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) },
	"a directory with content": func(t *testing.T, path string) {
		require.NoError(t, os.MkdirAll(filepath.Join(path, "terminated"), 0o700))
	},
	"a word with a newline": written("terminated\n"),
	"two words":             written("terminated interrupt"),
	"another word":          written("Terminated"),
	"nothing":               written(""),
	"a large file": func(t *testing.T, path string) {
		written("terminated")(t, path)
		require.NoError(t, os.Truncate(path, 10<<20))
	},
}

func written(content string) func(t *testing.T, path string) {
	return func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
}

func TestExitRecord_unknownWordMeansFullValidation(t *testing.T) {
	t.Parallel()
	for name, lay := range oddRecords {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			lay(t, p.RecordPath())
			run := p.StartReady()
			assert.Equal(t, []string{"full"}, p.Sidecar.Modes())
			run.Shutdown()
			left, err := os.Lstat(p.RecordPath())
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), left.Mode(), "a regular file")
			if target, err := os.ReadFile(p.RecordPath() + ".target"); err == nil {
				assert.Equal(t, "terminated", string(target), "the target of the link")
			}
		})
	}
}

func TestExitRecord_unremovable(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WriteRecord("terminated")
	freeze(t, p.RecordPath())
	same := unchangedFile(t, p.RecordPath())
	run := p.Start()
	require.Equal(t, 74, run.Exit(harness.Patience))
	same()
	p.RequireNoData()
	assert.NotEmpty(t, run.Log.FindText("cannot remove exit record"), "the log says why")
}

// freeze creates a file that cannot be removed. If the test runs as root, the file is immutable. Otherwise, the file
// is in another user's directory.
func freeze(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() == 0 {
		if out, err := exec.Command("chattr", "+i", path).CombinedOutput(); err != nil {
			t.Skipf("skipped: a file cannot be made immutable here: %v: %s", err, out)
		}
		t.Cleanup(func() { require.NoError(t, exec.Command("chattr", "-i", path).Run()) })
		return
	}
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o500))
	t.Cleanup(func() { require.NoError(t, os.Chmod(filepath.Dir(path), 0o700)) })
}

func TestVolumeLock_twoWrappers(t *testing.T) {
	t.Parallel()
	p, other := harness.NewPod(t), harness.NewPod(t)
	other.Volume = p.Volume
	other.Config = other.SingleMember()
	other.Config["initial-cluster"], other.Config["initial-advertise-peer-urls"] = p.Config["initial-cluster"], p.Config["initial-advertise-peer-urls"]
	first := p.StartReady()
	p.Put("key", "value")

	second := other.Start()
	second.AwaitLine(harness.Line{"event": "volume busy"})
	harness.Eventually(t, "the second process keeps trying", func() bool { return len(second.Log.Matching(harness.Line{"event": "volume busy"})) > 3 })
	assert.NotEmpty(t, second.Log.FindText("locked by another process"))
	assert.Empty(t, other.Sidecar.Filter(func(harness.Request) bool { return true }), "the second process sends no request")

	first.Shutdown()
	second.AwaitReady()
	assert.Equal(t, "value", other.Get("key"))
	assert.Equal(t, []string{"sanity"}, other.Sidecar.Modes())
	second.Shutdown()
}

func TestVolumeLock_stopWhileWaiting(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WriteRecord("interrupt")
	same := unchangedFile(t, p.RecordPath())
	harness.LockFile(t, p.Volume)
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "volume busy"})
	status, took := run.Stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, harness.AbortBudget)
	same()
	assert.Empty(t, p.Sidecar.Filter(func(harness.Request) bool { return true }))
}

// A record must be ignored if another etcd has used the data since the record was written.
func TestExitRecord_olderThanTheData(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, p *harness.Pod){
		"another etcd has served, and was killed": func(t *testing.T, p *harness.Pod) {
			other := harness.NewPod(t) // has its own volume and record
			other.Config = p.Config
			other.ClientPort, other.PeerPort = p.ClientPort, p.PeerPort
			run := other.StartReady()
			other.Put("key", "value")
			run.Kill()
		},
		"the data were replaced by a copy": func(t *testing.T, p *harness.Pod) {
			require.NoError(t, os.Rename(p.DataDir(), p.DataDir()+".old"))
			out, err := exec.Command("cp", "-a", p.DataDir()+".old", p.DataDir()).CombinedOutput()
			require.NoError(t, err, string(out))
		},
		"the log is gone": func(t *testing.T, p *harness.Pod) {
			require.NoError(t, os.RemoveAll(filepath.Join(p.DataDir(), "member")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			p.StartAndStop()
			change(t, p)
			require.Equal(t, "terminated", p.Record())
			p.StartAndStop()
			p.StartAndStop()
			assert.Equal(t, []string{"full", "full", "sanity"}, p.Sidecar.Modes())
		})
	}
}

// The wrapper must accept a record without a note, as written by gardener/etcd-wrapper and older versions.
func TestExitRecord_withoutNote(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	require.NoError(t, os.Remove(p.RecordPath()+".data"))
	p.StartAndStop()
	assert.Equal(t, []string{"full", "sanity"}, p.Sidecar.Modes())
}
