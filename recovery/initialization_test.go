package recovery

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
)

// validated returns a Recovery that uses the given validation.
func validated(t *testing.T, verify datadir.Validation) *Recovery {
	t.Helper()
	volume := t.TempDir()
	dataDir := filepath.Join(volume, "new.etcd")
	require.NoError(t, os.Mkdir(dataDir, 0o700))
	r := New(Options{VolumeDir: volume, Config: etcdconf.Source{DataDir: dataDir}, Validate: verify, Log: zerolog.Nop()})
	t.Cleanup(r.Close)
	return r
}

func validationOf(result error) datadir.Validation {
	return func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, result }
}

func requireStatus(t *testing.T, r *Recovery, want bootstrap.InitializationStatus) {
	t.Helper()
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, status)
}

// initialize runs an initialization until it is done.
func initialize(t *testing.T, r *Recovery) {
	t.Helper()
	require.NoError(t, r.Trigger(t.Context(), bootstrap.Full))
	r.running.Wait()
}

func TestStatusIsReadOnce(t *testing.T) {
	for want, result := range map[bootstrap.InitializationStatus]error{
		bootstrap.Successful: nil,
		bootstrap.Failed:     errors.New("broken"),
	} {
		r := validated(t, validationOf(result))
		requireStatus(t, r, bootstrap.New)
		requireStatus(t, r, bootstrap.New)
		initialize(t, r)
		requireStatus(t, r, want)
		requireStatus(t, r, bootstrap.New)
	}
}

func TestStatusIsKeptIfTheReaderHasLeft(t *testing.T) {
	r := validated(t, validationOf(nil))
	initialize(t, r)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := r.Status(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, r.Trigger(gone, bootstrap.Full), context.Canceled)
	requireStatus(t, r, bootstrap.Successful)
}

func TestTriggerStartsOnlyOneRun(t *testing.T) {
	var runs atomic.Int32
	release := make(chan struct{})
	r := validated(t, func(context.Context, string, bootstrap.Mode) ([]string, error) {
		runs.Add(1)
		<-release
		return nil, nil
	})
	for range 3 {
		require.NoError(t, r.Trigger(t.Context(), bootstrap.Full))
		requireStatus(t, r, bootstrap.Progress)
	}
	close(release)
	r.running.Wait()
	require.NoError(t, r.Trigger(t.Context(), bootstrap.Full), "the result was not read yet")
	r.running.Wait()
	require.EqualValues(t, 1, runs.Load())
	requireStatus(t, r, bootstrap.Successful)
}

func TestUnknownModeMeansFull(t *testing.T) {
	for asked, want := range map[bootstrap.Mode]bootstrap.Mode{
		bootstrap.Sanity: bootstrap.Sanity, bootstrap.Full: bootstrap.Full, "": bootstrap.Full, "SANITY": bootstrap.Full,
	} {
		ran := make(chan bootstrap.Mode, 1)
		r := validated(t, func(_ context.Context, _ string, mode bootstrap.Mode) ([]string, error) {
			ran <- mode
			return nil, nil
		})
		require.NoError(t, r.Trigger(t.Context(), asked))
		require.Equal(t, want, <-ran)
	}
}

// A requested stop is not an error, and Close waits for the end of the initialization.
func TestCloseStopsAnInitializationAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		r := validated(t, func(ctx context.Context, _ string, _ bootstrap.Mode) ([]string, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // in fake time
			ended = true
			return nil, ctx.Err()
		})
		var log bytes.Buffer
		r.options.Log = zerolog.New(&log)
		require.NoError(t, r.Trigger(t.Context(), bootstrap.Full))
		synctest.Wait()
		r.Close()
		require.True(t, ended)
		requireStatus(t, r, bootstrap.Failed)
		require.ErrorContains(t, r.Trigger(t.Context(), bootstrap.Full), "closed")
		r.Close()
		assert.NotContains(t, log.String(), `"level":"error"`)
		assert.Contains(t, log.String(), "recovery was stopped in state Examine")
	})
}

func TestFailureIsReportedAndLoggedOnce(t *testing.T) {
	r := validated(t, validationOf(errors.New("db: invalid page")))
	var log bytes.Buffer
	r.options.Log = zerolog.New(&log).Level(zerolog.ErrorLevel)
	require.NoError(t, r.WhyFailed())
	for range 2 {
		initialize(t, r)
		requireStatus(t, r, bootstrap.Failed)
		require.ErrorContains(t, r.WhyFailed(), "data directory "+r.options.Config.DataDir+" is corrupt or unusable: db: invalid page")
	}
	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	require.Len(t, lines, 1)
	for _, part := range []string{`"mode":"full"`, `"result":"Failed"`, `"took_ms":`, "db: invalid page"} {
		assert.Contains(t, string(lines[0]), part)
	}
}

func TestConfigIsTheValidatedOne(t *testing.T) {
	r := validated(t, validationOf(nil))
	first, second := "name: etcd-0\ndata-dir: "+r.options.Config.DataDir, "name: another"
	r.options.Config.File = filepath.Join(t.TempDir(), "etcd.yaml")
	require.NoError(t, os.WriteFile(r.options.Config.File, []byte(first), 0o600))
	initialize(t, r)
	requireStatus(t, r, bootstrap.Successful)
	require.NoError(t, os.WriteFile(r.options.Config.File, []byte(second), 0o600))
	served, err := r.Config(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, string(served))
}

func TestMissingConfigFails(t *testing.T) {
	r := validated(t, func(context.Context, string, bootstrap.Mode) ([]string, error) {
		return nil, errors.New("nobody knows what to validate")
	})
	r.options.Config.File = filepath.Join(t.TempDir(), "etcd.yaml")
	initialize(t, r)
	requireStatus(t, r, bootstrap.Failed)
	require.ErrorIs(t, r.WhyFailed(), os.ErrNotExist)
}
