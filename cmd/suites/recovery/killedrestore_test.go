package recovery_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// TestKilledRestore_isNotAnEmptyVolume kills a restore before the new data directory has its name, and starts without the store: the
// volume looks empty.
func TestKilledRestore_isNotAnEmptyVolume(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	s := newDamagedMember(t, emptyVolume, 0)
	s.Strace(harness.CallPoint{Call: "renameat", Path: s.DataDir(), Count: 1}.Inject("signal=KILL:when=1")...)
	require.Equal(t, -1, s.Start().Exit(harness.Patience), "SIGKILL ended it")
	s.Under = nil
	require.NoDirExists(t, s.DataDir())
	require.DirExists(t, s.DataDir()+".restored")

	withStore := slices.Clone(s.Flags)
	s.Flags = slices.DeleteFunc(s.Flags, func(flag string) bool { return flag == s.flag() })
	s.ExpectTerminationMessage()
	require.Equal(t, 70, s.Start().Exit(harness.Patience))
	message, err := os.ReadFile(s.TerminationMessage())
	require.NoError(t, err)
	assert.Contains(t, string(message), "start with --backup-store")
	assert.NoDirExists(t, s.DataDir())

	s.Flags = withStore
	s.requireRecovered(t, "with the store")
}
