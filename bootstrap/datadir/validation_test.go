package datadir

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestValidator_logsTheStart(t *testing.T) {
	var log bytes.Buffer
	dir := datadirtest.New(t)
	require.NoError(t, os.Remove(dir+"/member/snap/db"))
	validator := Validator{Run: Verify}
	require.ErrorContains(t, validator.Validate(t.Context(), dir, bootstrap.Sanity, zerolog.New(&log)), "database "+dir+"/member/snap/db does not exist")
	assert.JSONEq(t, `{"level":"info","message":"starting validation"}`, log.String())
}

// repeated returns a directory, a function that validates it with the given result, and the number of validations
// that were not answered from the cache.
func repeated(t *testing.T, result error) (dir string, validate func(bootstrap.Mode) error, reads *atomic.Int32) {
	dir, reads = t.TempDir(), &atomic.Int32{}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "db"), []byte("x"), 0o600))
	validator := Validator{Run: func(context.Context, string, bootstrap.Mode) ([]string, error) {
		reads.Add(1)
		return nil, result
	}}
	validate = func(mode bootstrap.Mode) error { return validator.Validate(t.Context(), dir, mode, zerolog.Nop()) }
	return dir, validate, reads
}

func TestUnchangedData_cachedForTheTTL(t *testing.T) {
	dir, validate, reads := repeated(t, errors.New("db: invalid page"))
	synctest.Test(t, func(t *testing.T) {
		requireReads := func(expected int32, mode bootstrap.Mode) {
			t.Helper()
			assert.EqualError(t, validate(mode), "data directory "+dir+" is corrupt or unusable: db: invalid page")
			assert.Equal(t, expected, reads.Load())
		}
		requireReads(1, bootstrap.Full)
		time.Sleep(resultTTL)
		requireReads(1, bootstrap.Full)
		requireReads(2, bootstrap.Sanity)
		require.NoError(t, os.Chmod(filepath.Join(dir, "db"), 0o640))
		requireReads(3, bootstrap.Sanity)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), nil, 0o600))
		requireReads(4, bootstrap.Sanity)
		time.Sleep(resultTTL + 1)
		requireReads(5, bootstrap.Sanity)
	})
}

func TestSystemError_isNotCached(t *testing.T) {
	_, validate, reads := repeated(t, &os.PathError{Op: "fork", Path: "/x", Err: syscall.EAGAIN})
	assert.NotContains(t, validate(bootstrap.Full).Error(), "corrupt")
	require.Error(t, validate(bootstrap.Full))
	assert.EqualValues(t, 2, reads.Load())
}

// errorOf wraps a validation and returns only its error.
func errorOf(verify Validation) func(ctx context.Context, dir string, mode bootstrap.Mode) error {
	return func(ctx context.Context, dir string, mode bootstrap.Mode) error {
		_, err := verify(ctx, dir, mode)
		return err
	}
}

func TestChildAgreesWithThisProcess(t *testing.T) {
	dir := datadirtest.New(t)
	require.NoError(t, errorOf(inChild("validation-verify"))(t.Context(), dir, bootstrap.Full))
	flip(t, segmentsOf(t, dir)[0], 20000)
	require.NoError(t, errorOf(inChild("validation-verify"))(t.Context(), dir, bootstrap.Sanity))
	want := errorOf(Verify)(t.Context(), dir, bootstrap.Full)
	require.EqualError(t, errorOf(inChild("validation-verify"))(t.Context(), dir, bootstrap.Full), want.Error())
}

// The parent process must log the warnings of its child.
func TestWarningsReachTheLog(t *testing.T) {
	dir := datadirtest.New(t)
	flip(t, snapshotsOf(t, dir)[0], 30)
	var log bytes.Buffer
	validator := Validator{Run: inChild("validation-verify")}
	require.NoError(t, validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.New(&log)))
	require.Contains(t, log.String(), `"level":"warn"`)
	require.Contains(t, log.String(), "etcd renames the file and starts from an older snapshot")
}

func TestRunValidation_limitsWarnings(t *testing.T) {
	dir := datadirtest.New(t)
	for i := range 1000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "wal", fmt.Sprintf("%d.%0200d.wal", i, i)), nil, 0o600))
	}
	warnings, err := inChild("validation-verify")(t.Context(), dir, bootstrap.Sanity)
	require.NoError(t, err)
	require.Len(t, warnings, maxWarnings)
}

func TestChildWithoutResult(t *testing.T) {
	for what, want := range map[string]string{
		"validation-panic":    "validation crashed: panic: invalid page !!!",
		"validation-silent":   "the validation process exited without a result",
		"validation-mismatch": "validation crashed: exit status 3",
		"validation-unknown":  "validation crashed: exit status 4",
	} {
		err := errorOf(inChild(what))(t.Context(), "/nowhere", bootstrap.Full)
		assert.ErrorContains(t, err, want)
		assert.Less(t, len(err.Error()), 400)
	}
	missing := ValidateInChild("/no/such/program", func(string, bootstrap.Mode) []string { return nil })
	assert.ErrorContains(t, errorOf(missing)(t.Context(), "/nowhere", bootstrap.Full), "/no/such/program")
}

// The data must not be rejected if the child cannot be started or is killed, for example because the machine is out
// of memory.
func TestValidateInChild_failedChildIsTransient(t *testing.T) {
	dir := datadirtest.New(t)
	runs, works := 0, false
	validator := Validator{Run: func(ctx context.Context, dir string, mode bootstrap.Mode) ([]string, error) {
		runs++
		if works {
			return nil, nil
		}
		killed := ValidateInChild("/bin/sh", func(string, bootstrap.Mode) []string { return []string{"-c", "kill -9 $$"} })
		return killed(ctx, dir, mode)
	}}
	for range 2 {
		err := validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.Nop())
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "corrupt")
		assert.True(t, IsTransient(err))
	}
	assert.Equal(t, 2, runs, "a transient error must not be cached, even if no file has changed")
	works = true
	require.NoError(t, validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.Nop()))

	missing := ValidateInChild("/no/such/program", func(string, bootstrap.Mode) []string { return nil })
	assert.True(t, IsTransient(errorOf(missing)(t.Context(), dir, bootstrap.Full)))
	assert.False(t, IsTransient(errorOf(inChild("validation-panic"))(t.Context(), dir, bootstrap.Full)))
}

// The data must not be rejected if the child exits because it ran out of resources, even though the exit status is
// the same as for unreadable data.
func TestValidateInChild_lackOfResourcesIsTransient(t *testing.T) {
	for what, want := range map[string]bool{"validation-starved": false, "validation-fault": true, "validation-overflow": true, "validation-panic": true} {
		assert.Equal(t, want, !IsTransient(errorOf(inChild(what))(t.Context(), "/nowhere", bootstrap.Full)), what)
	}
}

// Data that the child cannot read must not count as corrupt, because recovery would replace intact data with an older
// state.
func TestValidateInChild_unreadableDataIsTransient(t *testing.T) {
	dir := datadirtest.New(t)
	held, err := bolt.Open(filepath.Join(dir, "member", "snap", "db"), 0o600, nil)
	require.NoError(t, err)
	for _, verify := range []Validation{Verify, inChild("validation-verify")} {
		err := errorOf(verify)(t.Context(), dir, bootstrap.Full)
		require.ErrorContains(t, err, "member/snap/db: locked by another process")
		assert.True(t, IsTransient(err))
		assert.True(t, IsTransient(errorOf(verify)(t.Context(), dir, bootstrap.Sanity)))
	}
	require.NoError(t, held.Close())
	require.NoError(t, errorOf(inChild("validation-verify"))(t.Context(), dir, bootstrap.Full))

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "member", "wal")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "wal"), nil, 0o600))
	for _, verify := range []Validation{Verify, inChild("validation-verify")} {
		err := errorOf(verify)(t.Context(), dir, bootstrap.Full)
		require.Error(t, err)
		assert.False(t, IsTransient(err), "a file in place of a directory is not transient: %v", err)
	}
}

func TestChildEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := errorOf(inChild("validation-hang"))(ctx, "/data", bootstrap.Full)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "validation of /data was cancelled")
	require.Less(t, time.Since(start), 10*time.Second)
}

// corruptions is the number of databases to corrupt. For a longer run: go test ./bootstrap/datadir -run Random
// -corruptions 200.
var corruptions = flag.Uint64("corruptions", 12, "number of databases to corrupt at random")

// A flipped byte must cause an error that names a file, and must never crash this process.
func TestRandomCorruption(t *testing.T) {
	pristine := datadirtest.New(t)
	used := usedBytes(t, pristine)
	pages := used / int64(os.Getpagesize())
	for seed := range *corruptions {
		random := rand.New(rand.NewPCG(seed, 1))
		dir := filepath.Join(t.TempDir(), "new.etcd")
		require.NoError(t, os.CopyFS(dir, os.DirFS(pristine)))
		for range 1 + seed {
			offset := random.Int64N(used)
			if seed%2 == 0 { // flip a bit in the page header or the first elements, which define the structure of the page
				offset = random.Int64N(pages)*int64(os.Getpagesize()) + random.Int64N(64)
			}
			flip(t, dir+"/member/snap/db", offset)
		}
		err := errorOf(inChild("validation-verify"))(t.Context(), dir, bootstrap.Full)
		t.Logf("%2d: %v", seed, err)
		if err != nil && !strings.HasPrefix(err.Error(), "validation crashed: ") {
			require.ErrorContains(t, err, "member/snap/db", "seed %d", seed)
		}
	}
}

// runAsChild is the main function of the test binary in a child process: `<test binary> validation-<what> <data
// directory> <mode>`.
func runAsChild(what, dataDir string, mode bootstrap.Mode) int {
	switch what {
	case "validation-verify":
		return RunValidation(context.Background(), dataDir, mode, os.Stdout)
	case "validation-panic":
		fmt.Fprintln(os.Stderr, strings.Repeat("noise\n", 100))
		panic("invalid page " + strings.Repeat("!", 1<<20))
	case "validation-hang":
		time.Sleep(time.Hour)
	case "validation-silent":
		return childValid
	case "validation-starved", "validation-fault", "validation-overflow":
		why := map[string]string{"validation-starved": "newosproc", "validation-fault": "fault", "validation-overflow": "stack overflow"}[what]
		fmt.Fprintf(os.Stderr, "runtime: noise\nfatal error: %s\n\nruntime stack:\n", why)
		return 2
	case "validation-mismatch":
		fmt.Println(`{"valid":true}`)
		return 3
	}
	return 4
}

// inChild returns a Validation that runs this test binary as a child.
func inChild(what string) Validation {
	return ValidateInChild(os.Args[0], func(dataDir string, mode bootstrap.Mode) []string {
		return []string{what, dataDir, string(mode)}
	})
}
