package restore

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// inspected is what the process of its own is told to do in these tests.
const inspected = "inspect"

func inChild(what string) func(context.Context, string) error {
	return InspectInChild(os.Args[0], func(path string) []string { return []string{what, path} })
}

// contradict breaks a snapshot's database, and digests it again.
func contradict(snapshot []byte) []byte {
	broken := append([]byte{}, snapshot[:len(snapshot)-sha256.Size]...)
	datadirtest.Contradict(broken)
	sum := sha256.Sum256(broken)
	return append(broken, sum[:]...)
}

// bbolt would panic where nobody can recover.
func TestADatabaseWhosePagesContradictEachOtherIsDamaged(t *testing.T) {
	_, snapshot := smallFull(t)
	path := filepath.Join(t.TempDir(), "db")
	_, err := Database(t.Context(), snapshotOf(contradict(snapshot)), path, Options{Above: 1000, Inspect: inChild(inspected)})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "its database cannot be read: panic: ")
	require.NoFileExists(t, path)

	_, err = Database(t.Context(), snapshotOf(snapshot), path, Options{Above: 1000, Inspect: inChild(inspected)})
	require.NoError(t, err)
}

func TestAnInspectionThatCannotBeMadeIsNoResult(t *testing.T) {
	_, snapshot := smallFull(t)
	_, err := Database(t.Context(), snapshotOf(snapshot), filepath.Join(t.TempDir(), "db"), Options{Above: 1000, Inspect: inChild("unknown")})
	require.ErrorContains(t, err, "cannot inspect it: exit status 3")
	require.NotErrorIs(t, err, ErrDamaged)
}
