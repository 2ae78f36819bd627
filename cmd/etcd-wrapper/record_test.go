package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// oddRecords are what may lie at the record's path and says nothing about the last exit.
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

func TestAnythingButACleanWordMeansFullAndIsReplaced(t *testing.T) {
	t.Parallel()
	for name, lay := range oddRecords {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			lay(t, p.recordPath())
			w := p.start()
			w.awaitReady()
			assert.Equal(t, []string{"full"}, p.sidecar.modes())
			w.stopCleanly()
			left, err := os.Lstat(p.recordPath())
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), left.Mode(), "a regular file")
			if target, err := os.ReadFile(p.recordPath() + ".target"); err == nil {
				assert.Equal(t, "terminated", string(target), "what the link pointed at")
			}
		})
	}
}

func TestEtcdIsNotStartedOverARecordThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.writeRecord("terminated")
	freeze(t, p.recordPath())
	same := untouched(t, p.recordPath())
	w := p.start()
	require.Equal(t, 74, w.exit(soon))
	same()
	p.neverOpened()
	assert.NotEmpty(t, w.log.containing("cannot remove exit record"), "the log says why")
}

// freeze makes a file that can't be removed: immutable for root, in a directory of somebody else's for others.
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

func TestTwoWrappersTakeTurnsOnOneVolume(t *testing.T) {
	t.Parallel()
	p, other := newPlace(t), newPlace(t)
	other.volume = p.volume
	other.config = other.singleMember()
	other.config["initial-cluster"], other.config["initial-advertise-peer-urls"] = p.config["initial-cluster"], p.config["initial-advertise-peer-urls"]
	first := p.start()
	first.awaitReady()
	p.put("key", "value")

	second := other.start()
	second.awaitLine(line{"event": "volume busy"})
	eventually(t, "it keeps trying", func() bool { return len(second.log.matching(line{"event": "volume busy"})) > 3 })
	assert.NotEmpty(t, second.log.containing("another process holds the volume"))
	assert.Empty(t, other.sidecar.filter(func(request) bool { return true }), "the second asks for nothing")

	first.stopCleanly()
	second.awaitReady()
	assert.Equal(t, "value", other.get("key"))
	assert.Equal(t, []string{"sanity"}, other.sidecar.modes())
	second.stopCleanly()
}

func TestStopWhileTheVolumeIsHeldByAnother(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.writeRecord("interrupt")
	same := untouched(t, p.recordPath())
	lockFile(t, p.volume)
	w := p.start()
	w.awaitLine(line{"event": "volume busy"})
	status, took := w.stop(syscall.SIGTERM)
	assert.Equal(t, 0, status)
	assert.Less(t, took, abortBudget)
	same()
	assert.Empty(t, p.sidecar.filter(func(request) bool { return true }))
}
