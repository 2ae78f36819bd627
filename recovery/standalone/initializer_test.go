package standalone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestVerdictIsReadOnce(t *testing.T) {
	for want, verdict := range map[bootstrap.InitializationStatus]error{
		bootstrap.Successful: nil,
		bootstrap.Failed:     errors.New("broken"),
	} {
		synctest.Test(t, func(t *testing.T) {
			initializer := New(Options{DataDir: "/data", Verify: func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, verdict }})
			defer initializer.Close()
			requireStatus(t, initializer, bootstrap.New)
			requireStatus(t, initializer, bootstrap.New)
			require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
			synctest.Wait()
			requireStatus(t, initializer, want)
			requireStatus(t, initializer, bootstrap.New)
		})
	}
}

func TestVerdictIsKeptForAReaderWhoIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		initializer := New(Options{Verify: func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, nil }})
		defer initializer.Close()
		require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err := initializer.Status(gone)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, initializer.Trigger(gone, bootstrap.Full), context.Canceled)
		requireStatus(t, initializer, bootstrap.Successful)
	})
}

func TestTriggerOnlyWhenNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		release := make(chan struct{})
		initializer := New(Options{Verify: func(context.Context, string, bootstrap.Mode) ([]string, error) {
			runs.Add(1)
			<-release
			return nil, nil
		}})
		defer initializer.Close()
		for range 3 {
			require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
			synctest.Wait()
			requireStatus(t, initializer, bootstrap.Progress)
		}
		close(release)
		synctest.Wait()
		require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full), "the verdict was not read yet")
		synctest.Wait()
		require.EqualValues(t, 1, runs.Load())
		requireStatus(t, initializer, bootstrap.Successful)
	})
}

func TestUnknownModeMeansFull(t *testing.T) {
	for asked, want := range map[bootstrap.Mode]bootstrap.Mode{
		bootstrap.Sanity: bootstrap.Sanity, bootstrap.Full: bootstrap.Full, "": bootstrap.Full, "SANITY": bootstrap.Full,
	} {
		ran := make(chan bootstrap.Mode, 1)
		initializer := New(Options{Verify: func(_ context.Context, _ string, mode bootstrap.Mode) ([]string, error) {
			ran <- mode
			return nil, nil
		}})
		require.NoError(t, initializer.Trigger(t.Context(), asked))
		require.Equal(t, want, <-ran)
		initializer.Close()
	}
}

func TestCloseStopsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		initializer := New(Options{Verify: func(ctx context.Context, _ string, _ bootstrap.Mode) ([]string, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // on synctest's clock
			ended = true
			return nil, ctx.Err()
		}})
		require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
		synctest.Wait()
		initializer.Close()
		require.True(t, ended)
		requireStatus(t, initializer, bootstrap.Failed)
		require.ErrorContains(t, initializer.Trigger(t.Context(), bootstrap.Full), "closed")
		initializer.Close()
	})
}

// Somebody has asked for it.
func TestAStopInTheMiddleIsNoError(t *testing.T) {
	for name, of := range map[string]struct {
		with Options
		said string
	}{
		"of a validation": {Options{DataDir: "/data", Verify: inChild("child-hang")}, "validation ended"},
		"of a recovery": {Options{DataDir: "/data", Recover: func(ctx context.Context, yaml []byte, _ string, _ func(context.Context) error) ([]byte, error) {
			<-ctx.Done()
			return yaml, fmt.Errorf("recovery was stopped in Build: %w", ctx.Err())
		}}, "recovery was stopped in Build"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			of.with.Log = zerolog.New(&log)
			initializer := New(of.with)
			require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
			initializer.Close()
			require.NotContains(t, log.String(), `"level":"error"`)
			require.Contains(t, log.String(), of.said)
		})
	}
}

func TestCloseKillsAChild(t *testing.T) {
	initializer := New(Options{DataDir: "/data", Verify: inChild("child-hang")})
	require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
	requireStatus(t, initializer, bootstrap.Progress)
	initializer.Close()
	requireStatus(t, initializer, bootstrap.Failed)
}

func TestValidationIsLogged(t *testing.T) {
	var log bytes.Buffer
	dir := datadirtest.New(t)
	require.NoError(t, os.Remove(dir+"/member/snap/db"))
	initializer := New(Options{DataDir: dir, Log: zerolog.New(&log)})
	require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Sanity))
	require.Eventually(t, func() bool {
		status, err := initializer.Status(t.Context())
		return err == nil && status == bootstrap.Failed
	}, 10*time.Second, time.Millisecond)
	initializer.Close()

	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	require.Len(t, lines, 2)
	assert.JSONEq(t, `{"level":"info","mode":"sanity","data-dir":"`+dir+`","message":"validation begins"}`, string(lines[0]))
	for _, part := range []string{`"level":"error"`, `"verdict":"Failed"`, `"took_ms":`, "there is no database " + dir} {
		assert.Contains(t, string(lines[1]), part)
	}
}

func requireStatus(t *testing.T, initializer *Initializer, want bootstrap.InitializationStatus) {
	t.Helper()
	status, err := initializer.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, status)
}

// verdicts runs a validation over a real directory, again and again, and counts how often it is read.
func verdicts(t *testing.T, verdict error) (dir string, again func() *Initializer, reads *atomic.Int32) {
	dir, reads = t.TempDir(), &atomic.Int32{}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "db"), []byte("x"), 0o600))
	initializer := New(Options{DataDir: dir, Verify: func(context.Context, string, bootstrap.Mode) ([]string, error) {
		reads.Add(1)
		return nil, verdict
	}})
	t.Cleanup(initializer.Close)
	return dir, func() *Initializer {
		require.NoError(t, initializer.Trigger(t.Context(), bootstrap.Full))
		initializer.running.Wait()
		requireStatus(t, initializer, bootstrap.Failed)
		return initializer
	}, reads
}

func TestDataThatHaveNotChangedAreNotReadAgain(t *testing.T) {
	dir, again, reads := verdicts(t, errors.New("db: invalid page"))
	for range 3 {
		assert.ErrorContains(t, again().WhyFailed(), "data directory "+dir+" is corrupt or cannot be used: db: invalid page")
	}
	assert.EqualValues(t, 1, reads.Load())
	require.NoError(t, os.Chmod(filepath.Join(dir, "db"), 0o640))
	again()
	assert.EqualValues(t, 2, reads.Load(), "somebody has done something about it")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), nil, 0o600))
	again()
	assert.EqualValues(t, 3, reads.Load())
}

func TestWhatTheOperatingSystemSaysIsNoVerdict(t *testing.T) {
	_, again, reads := verdicts(t, &os.PathError{Op: "fork", Path: "/x", Err: syscall.EAGAIN})
	assert.NotContains(t, again().WhyFailed().Error(), "corrupt")
	again()
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

func TestTheReasonIsThatOfTheLastValidation(t *testing.T) {
	initializer := New(Options{DataDir: t.TempDir()})
	defer initializer.Close()
	require.NoError(t, initializer.WhyFailed())
	require.NoError(t, initializer.CheckConfig())
	initializer.options.ConfigFile = "/nowhere.yaml"
	require.ErrorIs(t, initializer.CheckConfig(), os.ErrNotExist)
	file := filepath.Join(t.TempDir(), "etcd.yaml")
	require.NoError(t, os.WriteFile(file, []byte("name: ["), 0o600))
	initializer.options.ConfigFile = file
	require.ErrorIs(t, initializer.CheckConfig(), ErrConfig)
}
