package recovery_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// A damagedMember is a stopped single member with a damaged volume. It can be reset and recovered any number of
// times.
type damagedMember struct {
	*harness.Pod
	depot
	copies int // number of copies of the data that recovery must preserve
}

// damages lists ways to damage a volume, each with the number of copies of the data that recovery must preserve.
var damages = []struct {
	name   string
	damage func(p *harness.Pod)
	copies int
}{
	{"volume lost", emptyVolume, 0},
	{"database broken", breakDatabase, 1},
}

// newDamagedMember returns a member whose volume is damaged and whose store contains all writes.
func newDamagedMember(t *testing.T, damage func(p *harness.Pod), copies int) *damagedMember {
	t.Helper()
	s := &damagedMember{Pod: harness.NewStandalonePod(t, nil), depot: newDepot(t), copies: copies}
	s.Flags = append(s.Flags, s.flag())
	first := s.StartReady()
	s.Put("key", "value")
	first.Shutdown()
	first.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
	damage(s.Pod)
	s.copyAll(s.Volume, s.Volume+".saved")
	s.copyAll(s.dir, s.dir+".saved")
	return s
}

// reset restores the volume and the store from their copies.
func (s *damagedMember) reset() {
	s.T.Helper()
	s.copyAll(s.Volume+".saved", s.Volume)
	s.copyAll(s.dir+".saved", s.dir)
}

// copyAll replaces the content of a directory with a copy of another directory's content. It does not replace the
// directory itself, which may be a mount point.
func (s *damagedMember) copyAll(from, to string) {
	s.T.Helper()
	script := `mkdir -p "$1" && find "$1" -mindepth 1 -delete && cp -a --sparse=always "$0/." "$1" && sync -f "$1"`
	out, err := exec.Command("sh", "-c", script, from, to).CombinedOutput()
	require.NoError(s.T, err, string(out))
}

// requireRecovered starts the member and requires that recovery succeeds, preserves the data and leaves nothing
// unfinished behind. where describes the preceding fault.
func (s *damagedMember) requireRecovered(t *testing.T, where string) {
	t.Helper()
	run := s.StartReady()
	assert.Equal(t, "value", s.Get("key"), where)
	assert.Len(t, preservedCopies(s.Pod), s.copies, where)
	assert.Empty(t, unfinishedFiles(s.Pod), where)
	position, err := os.ReadFile(filepath.Join(s.Volume, "recovery.json"))
	require.NoError(t, err)
	assert.NotContains(t, string(position), `"claim"`, where)
	generations := s.generations()
	assert.Equal(t, run.Status().ClusterID, generations[len(generations)-1].Etcd, where)
	assert.LessOrEqual(t, len(generations), 3, fmt.Sprint(where, ": generations; besides the first, only that of a killed restore and the final one"))
	run.Kill()
}
