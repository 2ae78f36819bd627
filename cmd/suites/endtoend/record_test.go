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

// invalidRecords lists functions that create something other than a valid record at the exit record's path.
var invalidRecords = map[string]func(t *testing.T, path string){
	"a symbolic link to a file with a valid word": func(t *testing.T, path string) {
		require.NoError(t, os.WriteFile(path+".target", []byte("terminated"), 0o600))
		require.NoError(t, os.Symlink(path+".target", path))
	},
	"a dangling symbolic link": func(t *testing.T, path string) { require.NoError(t, os.Symlink("/nowhere", path)) },
	"a FIFO":                   func(t *testing.T, path string) { require.NoError(t, unix.Mkfifo(path, 0o600)) },
	"a directory":              func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) },
	"a directory that is not empty": func(t *testing.T, path string) {
		require.NoError(t, os.MkdirAll(filepath.Join(path, "terminated"), 0o700))
	},
	"a valid word and a newline": written("terminated\n"),
	"two valid words":            written("terminated interrupt"),
	"an unknown word":            written("Terminated"),
	"an empty file":              written(""),
	"a large file that starts with a valid word": func(t *testing.T, path string) {
		written("terminated")(t, path)
		require.NoError(t, os.Truncate(path, 10<<20))
	},
}

func written(content string) func(t *testing.T, path string) {
	return func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
}

func TestExitRecord_unknownWordMeansFullValidation(t *testing.T) {
	t.Parallel()
	for name, create := range invalidRecords {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPod(t)
			create(t, p.RecordPath())
			run := p.StartReady()
			assert.Equal(t, []string{"full"}, p.Sidecar.Modes())
			run.Shutdown()
			left, err := os.Lstat(p.RecordPath())
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), left.Mode(), "the record is a regular file")
			if target, err := os.ReadFile(p.RecordPath() + ".target"); err == nil {
				assert.Equal(t, "terminated", string(target), "the target of the link is unchanged")
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
	assert.NotEmpty(t, run.Log.FindText("cannot remove the exit record"), "the log contains the reason")
}

// freeze prevents the removal of a file until the end of the test. For root, it makes the file immutable; for other
// users, it makes the directory read-only.
func freeze(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() == 0 {
		if out, err := exec.Command("chattr", "+i", path).CombinedOutput(); err != nil {
			t.Skipf("skipped: cannot make a file immutable: %v: %s", err, out)
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
	harness.Eventually(t, "the second process retries", func() bool { return len(second.Log.Matching(harness.Line{"event": "volume busy"})) > 3 })
	assert.NotEmpty(t, second.Log.FindText("locked by another process"))
	assert.Empty(t, other.Sidecar.Filter(func(harness.Request) bool { return true }), "the second process sends no request to its sidecar")

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

// An exit record must be ignored if the data has been used or replaced since the record was written.
func TestExitRecord_olderThanTheData(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, p *harness.Pod){
		"another process has used the data and was killed": func(t *testing.T, p *harness.Pod) {
			other := harness.NewPod(t) // a pod with its own volume and exit record
			other.Config = p.Config
			other.ClientPort, other.PeerPort = p.ClientPort, p.PeerPort
			run := other.StartReady()
			other.Put("key", "value")
			run.Kill()
		},
		"the data was replaced by a copy": func(t *testing.T, p *harness.Pod) {
			require.NoError(t, os.Rename(p.DataDir(), p.DataDir()+".old"))
			out, err := exec.Command("cp", "-a", p.DataDir()+".old", p.DataDir()).CombinedOutput()
			require.NoError(t, err, string(out))
		},
		"the data was deleted": func(t *testing.T, p *harness.Pod) {
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

// The wrapper must accept an exit record without the file that describes the data, as written by gardener/etcd-wrapper
// and by older versions.
func TestExitRecord_withoutNote(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.StartAndStop()
	require.NoError(t, os.Remove(p.RecordPath()+".data"))
	p.StartAndStop()
	assert.Equal(t, []string{"full", "sanity"}, p.Sidecar.Modes())
}
