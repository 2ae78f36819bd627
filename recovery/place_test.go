package recovery

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAPathThatEndsWithASlashIsTheSamePlace(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.spoil()
	at := w.member.DataDir
	w.member.DataDir += "/"
	require.NoError(t, w.run())
	w.member.DataDir = at
	w.requireEnd([]string{"key"}, 1)
}

// A link of that name says where the data are to be: that is where they come back.
func TestDataThatALinkLeadsToComeBackWhereItLeads(t *testing.T) {
	for name, lost := range map[string]bool{"broken": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			w.spoil()
			elsewhere := filepath.Join(t.TempDir(), "etcd")
			require.NoError(t, os.Rename(w.member.DataDir, elsewhere))
			require.NoError(t, os.Symlink(elsewhere, w.member.DataDir))
			if lost {
				require.NoError(t, os.RemoveAll(elsewhere))
			}
			link := w.member.DataDir
			require.NoError(t, w.run())
			target, err := os.Readlink(link)
			require.NoError(t, err, "the link is as it was")
			assert.Equal(t, elsewhere, target)
			w.member.DataDir = elsewhere
			keys, _ := w.keys()
			assert.Equal(t, []string{"key"}, keys)
			if !lost {
				assert.Len(t, w.asides(), 1)
			}
		})
	}
}

// Nothing can be given the name of a mount point. That has to be known before a generation is begun, since nothing else may come to
// be opened after that.
func TestAMountPointIsRefusedBeforeAnythingIsFetched(t *testing.T) {
	w := newWorld(t)
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	require.NoError(t, os.Mkdir(w.member.DataDir, 0o700))
	if err := unix.Mount(t.TempDir(), w.member.DataDir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("skipped: nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(w.member.DataDir, unix.MNT_DETACH)) })
	require.ErrorContains(t, w.run(), "is a mount point")
	assert.Empty(t, w.leftovers())
	assert.Len(t, w.generations(), 1)
}

// There is time to change that as long as the data are in order.
func TestAMountPointIsWarnedOfInTime(t *testing.T) {
	w := newWorld(t)
	w.used()
	require.NoError(t, w.run())
	const warning = `if the data were lost or broken, they could not come back by themselves`
	assert.NotContains(t, w.log.String(), warning)
	if err := unix.Mount(w.member.DataDir, w.member.DataDir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("skipped: nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(w.member.DataDir, unix.MNT_DETACH)) })
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), warning)
	assert.Contains(t, w.log.String(), "is a mount point")
}

// What is mounted there again would be a part of other data by then.
func TestAMountPointWithinTheDataIsWarnedOf(t *testing.T) {
	w := newWorld(t)
	w.used()
	require.NoError(t, w.run())
	assert.NotContains(t, w.log.String(), "is a mount point")
	log := filepath.Join(w.member.DataDir, "member", "wal")
	if err := unix.Mount(log, log, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("skipped: nothing can be mounted here: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(log, 0)) }()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), log+" is a mount point: if the data were replaced, it would be in the way at the next start")
}
