package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// etcdTroubles are data directories and disks that etcd cannot run on. Each was fine when etcd was stopped in order.
var etcdTroubles = map[string]struct {
	spoil  func(p *place)
	status int
	says   string
}{
	"corrupt log": {func(p *place) { flipBits(p.t, p.wal(), p.logEnd()-8, 8) }, 70, "crc mismatch"},
	"log without its end": {func(p *place) {
		require.NoError(p.t, os.Truncate(p.wal(), p.logEnd()/2))
	}, 70, "was cut off or damaged: it ends at index"},
	"log with a corrupt head": {func(p *place) { flipBits(p.t, p.wal(), 0, 64) }, 70, "was lost, cut off or damaged"},
	"corrupt database":        {func(p *place) { flipBits(p.t, p.database(), 0, 16<<10) }, 2, "invalid database"},
	"database of something else": {func(p *place) {
		require.NoError(p.t, os.WriteFile(p.database(), bytes.Repeat([]byte("not etcd's"), 1000), 0o600))
	}, 2, "invalid database"},
	"a file in the place of a directory": {func(p *place) {
		require.NoError(p.t, os.RemoveAll(p.data()))
		require.NoError(p.t, os.WriteFile(p.data(), nil, 0o600))
	}, 70, "not a directory"},
	"log cut off": {func(p *place) { require.NoError(p.t, os.Truncate(p.wal(), 100)) }, 70, "was lost, cut off or damaged"},
	"log lost": {func(p *place) {
		require.NoError(p.t, os.RemoveAll(filepath.Dir(p.wal())))
	}, 70, "was lost, cut off or damaged"},
	"data of another member of the cluster": {func(p *place) {
		other := newPlace(p.t)
		other.config["name"] = "other-0"
		other.config["initial-cluster"] = fmt.Sprintf("other-0=http://127.0.0.1:%d", other.peer)
		p.config["initial-cluster"] = fmt.Sprintf("%s,other-0=http://127.0.0.1:%d", p.config["initial-cluster"], freePort(p.t))
		other.bornAndStopped()
		p.takeData(other.data())
	}, 70, `is that of member "other-0"`},
	"database cut off":         {func(p *place) { require.NoError(p.t, os.Truncate(p.database(), 8192)) }, 70, "the database was cut off"},
	"data of a newer etcd":     {func(p *place) { p.setClusterVersion("3.7.0") }, 2, "3.7"},
	"read-only volume":         {(*place).makeReadOnly, 74, syscall.EROFS.Error()},
	"read-only data directory": {func(p *place) { mount(p.t, "--bind", "-o", "ro", p.data(), p.data()) }, 70, syscall.EROFS.Error()},
}

func TestFaultEtcdSaysWhyItCannotRun(t *testing.T) {
	t.Parallel()
	for name, trouble := range etcdTroubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "opening", name)
			p := newPlace(t)
			require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
			p.bornAndStopped()
			trouble.spoil(p)
			w := p.start()
			assert.Equal(t, trouble.status, w.exit(soon))
			p.assertExplained(w, trouble.says)
			assert.Equal(t, trouble.status == 74, p.clean(), "an etcd that was not started leaves the record as it was")
		})
	}
}

// logEnd is where the log's last record ends.
func (p *place) logEnd() int64 {
	p.t.Helper()
	content, err := os.ReadFile(p.wal())
	require.NoError(p.t, err)
	return int64(len(bytes.TrimRight(content, "\x00")))
}

// setClusterVersion makes the data look as if a cluster of that version had written it.
func (p *place) setClusterVersion(version string) {
	p.t.Helper()
	database, err := bolt.Open(p.database(), 0o600, nil)
	require.NoError(p.t, err)
	require.NoError(p.t, database.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte(version))
	}))
	require.NoError(p.t, database.Close())
}

func (p *place) makeReadOnly() { mount(p.t, "--bind", "-o", "ro", p.volume, p.volume) }

func TestFaultFullDisk(t *testing.T) {
	t.Parallel()
	// 200 MB take the segments of 64 MB that etcd prepares, the second while it starts: to try that needs all there is.
	for name, free := range map[string]int{"at birth": 1 << 20, "while serving": 200 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, map[string]string{"at birth": "opening", "while serving": "serving"}[name], "disk full")
			p := newPlace(t)
			require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
			mount(t, "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", free), "none", p.volume)
			w := p.start()
			if name == "while serving" {
				w.awaitReady()
				fill(t, filepath.Join(p.volume, "filler"))
				p.writeUntilItFails()
			}
			assert.Contains(t, []int{2, 70}, w.exit(soon))
			p.assertExplained(w, syscall.ENOSPC.Error())
			require.False(t, p.clean())
		})
	}
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close() // it cannot be complete
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
}

func (p *place) writeUntilItFails() {
	value := string(make([]byte, 1<<20))
	for range 100 {
		if p.tryPut("key", value, stopBudget/10) != nil {
			return
		}
	}
}

func TestFaultSettingsThatAreRarelyMeantAreWarnedOf(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(p *place) string{
		"force-new-cluster": func(p *place) string {
			p.config["force-new-cluster"] = true
			return "force-new-cluster is set"
		},
		"data on another volume than the record": func(p *place) string {
			other := t.TempDir()
			mount(p.t, "-t", "tmpfs", "none", other)
			p.config["data-dir"] = filepath.Join(other, "new.etcd")
			return "another volume than the exit record"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial(t, "configured", name)
			p := newPlace(t)
			warning := set(p)
			w := p.start()
			w.awaitReady()
			assert.Len(t, w.log.matching(line{"level": "warn", "message": warning}), 1)
			w.stopCleanly()
		})
	}
}

// takeData replaces the data here by others.
func (p *place) takeData(others string) {
	p.t.Helper()
	require.NoError(p.t, os.RemoveAll(p.data()))
	require.NoError(p.t, os.Rename(others, p.data()))
}
