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

// strickenMember is a single member after a disaster. Copies of its volume and store restore that moment.
type strickenMember struct {
	*harness.Pod
	depot
	asides int // that there are when it has recovered
}

// strokes lists what can have happened, and the number of preserved copies afterwards.
var strokes = []struct {
	name    string
	happens func(p *harness.Pod)
	asides  int
}{
	{"volume lost", lose, 0},
	{"database broken", breakDatabase, 1},
}

// newStricken has a volume and a store of which the strike is the last that happened.
func newStricken(t *testing.T, happens func(p *harness.Pod), asides int) *strickenMember {
	t.Helper()
	s := &strickenMember{Pod: harness.NewStandalonePod(t, nil), depot: newDepot(t), asides: asides}
	s.Flags = append(s.Flags, s.flag())
	first := s.StartReady()
	s.Put("key", "value")
	first.StopCleanly()
	first.AwaitLine(harness.Line{"message": "backups: all acknowledged writes are in the store"})
	happens(s.Pod)
	s.copyAll(s.Volume, s.Volume+".then")
	s.copyAll(s.dir, s.dir+".then")
	return s
}

// reset restores the copies of the volume and the store.
func (s *strickenMember) reset() {
	s.T.Helper()
	s.copyAll(s.Volume+".then", s.Volume)
	s.copyAll(s.dir+".then", s.dir)
}

// copyAll gives a directory the content of another. The directory itself stays: it may be where something is mounted.
func (s *strickenMember) copyAll(from, to string) {
	s.T.Helper()
	script := `mkdir -p "$1" && find "$1" -mindepth 1 -delete && cp -a --sparse=always "$0/." "$1" && sync -f "$1"`
	out, err := exec.Command("sh", "-c", script, from, to).CombinedOutput()
	require.NoError(s.T, err, string(out))
}

// requireEnd starts the member, and checks the result.
func (s *strickenMember) requireEnd(t *testing.T, where string) {
	t.Helper()
	run := s.StartReady()
	assert.Equal(t, "value", s.Get("key"), where)
	assert.Len(t, preserved(s.Pod), s.asides, where)
	assert.Empty(t, halves(s.Pod), where)
	position, err := os.ReadFile(filepath.Join(s.Volume, "recovery.json"))
	require.NoError(t, err)
	assert.NotContains(t, string(position), `"claim"`, where)
	generations := s.generations()
	assert.Equal(t, run.Status().ClusterID, generations[len(generations)-1].Etcd, where)
	assert.LessOrEqual(t, len(generations), 3, fmt.Sprint(where, ": at most what was begun, and what it came to"))
	run.Kill()
}
