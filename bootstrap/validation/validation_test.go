package validation

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestAValidationIsLogged(t *testing.T) {
	var log bytes.Buffer
	dir := datadirtest.New(t)
	require.NoError(t, os.Remove(dir+"/member/snap/db"))
	validator := Validator{Run: datadir.Verify}
	require.ErrorContains(t, validator.Validate(t.Context(), dir, bootstrap.Sanity, zerolog.New(&log)), "there is no database "+dir)
	assert.JSONEq(t, `{"level":"info","message":"validation begins"}`, log.String())
}

// verdicts validates a real directory, again and again, and counts how often it is read.
func verdicts(t *testing.T, verdict error) (dir string, again func() error, reads *atomic.Int32) {
	dir, reads = t.TempDir(), &atomic.Int32{}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "db"), []byte("x"), 0o600))
	validator := Validator{Run: func(context.Context, string, bootstrap.Mode) ([]string, error) {
		reads.Add(1)
		return nil, verdict
	}}
	return dir, func() error { return validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.Nop()) }, reads
}

func TestDataThatHaveNotChangedAreNotReadAgain(t *testing.T) {
	dir, again, reads := verdicts(t, errors.New("db: invalid page"))
	for range 3 {
		assert.EqualError(t, again(), "data directory "+dir+" is corrupt or cannot be used: db: invalid page")
	}
	assert.EqualValues(t, 1, reads.Load())
	require.NoError(t, os.Chmod(filepath.Join(dir, "db"), 0o640))
	require.Error(t, again())
	assert.EqualValues(t, 2, reads.Load(), "somebody has done something about it")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), nil, 0o600))
	require.Error(t, again())
	assert.EqualValues(t, 3, reads.Load())
}

func TestWhatTheOperatingSystemSaysIsNoVerdict(t *testing.T) {
	_, again, reads := verdicts(t, &os.PathError{Op: "fork", Path: "/x", Err: syscall.EAGAIN})
	assert.NotContains(t, again().Error(), "corrupt")
	require.Error(t, again())
	assert.EqualValues(t, 2, reads.Load())
}

func TestAVerdictIsNotBelievedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := memory{}
		known.keep(looks{dataDir: "/data"}, errors.New("broken"))
		time.Sleep(verdictLasts)
		require.Error(t, known.recall(looks{dataDir: "/data"}))
		require.NoError(t, known.recall(looks{dataDir: "/data", mode: bootstrap.Sanity}))
		time.Sleep(time.Nanosecond)
		require.NoError(t, known.recall(looks{dataDir: "/data"}))
	})
}
