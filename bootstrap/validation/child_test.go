package validation

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// errorOf is what is wrong with the data, without the warnings.
func errorOf(verify Func) func(ctx context.Context, dir string, mode bootstrap.Mode) error {
	return func(ctx context.Context, dir string, mode bootstrap.Mode) error {
		_, err := verify(ctx, dir, mode)
		return err
	}
}

func TestChildAgreesWithThisProcess(t *testing.T) {
	dir := datadirtest.New(t)
	require.NoError(t, errorOf(inChild("child-verify"))(t.Context(), dir, bootstrap.Full))
	datadirtest.Flip(t, datadirtest.Segments(t, dir)[0], 20000)
	require.NoError(t, errorOf(inChild("child-verify"))(t.Context(), dir, bootstrap.Sanity))
	want := errorOf(datadir.Verify)(t.Context(), dir, bootstrap.Full)
	require.EqualError(t, errorOf(inChild("child-verify"))(t.Context(), dir, bootstrap.Full), want.Error())
}

// What etcd can do without is told by the process that logs, not by the child.
func TestWarningsReachTheLog(t *testing.T) {
	dir := datadirtest.New(t)
	datadirtest.Flip(t, datadirtest.Snapshots(t, dir)[0], 30)
	var log bytes.Buffer
	validator := Validator{Run: inChild("child-verify")}
	require.NoError(t, validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.New(&log)))
	require.Contains(t, log.String(), `"level":"warn"`)
	require.Contains(t, log.String(), "etcd renames it and goes on from an older one")
}

func TestAVerdictWithManyWarningsFitsIntoItsLine(t *testing.T) {
	dir := datadirtest.New(t)
	for i := range 1000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "wal", fmt.Sprintf("%d.%0200d.wal", i, i)), nil, 0o600))
	}
	warnings, err := inChild("child-verify")(t.Context(), dir, bootstrap.Sanity)
	require.NoError(t, err)
	require.Len(t, warnings, maxWarnings)
}

func TestChildWithoutVerdict(t *testing.T) {
	for what, want := range map[string]string{
		"child-panic":   "validation crashed: panic: the page is on fire !!!",
		"child-silent":  "validation ended without a verdict",
		"child-liar":    "validation crashed: exit status 3",
		"child-unknown": "validation crashed: exit status 4",
	} {
		err := errorOf(inChild(what))(t.Context(), "/nowhere", bootstrap.Full)
		assert.ErrorContains(t, err, want)
		assert.Less(t, len(err.Error()), 400)
	}
	missing := InChild("/no/such/program", func(string, bootstrap.Mode) []string { return nil })
	assert.ErrorContains(t, errorOf(missing)(t.Context(), "/nowhere", bootstrap.Full), "/no/such/program")
}

// The kernel kills when there is no memory, and no process can be begun when there are too many.
func TestAChildThatCouldNotLookIsNoVerdictAgainstTheData(t *testing.T) {
	dir := datadirtest.New(t)
	looked, able := 0, false
	validator := Validator{Run: func(ctx context.Context, dir string, mode bootstrap.Mode) ([]string, error) {
		looked++
		if able {
			return nil, nil
		}
		killed := InChild("/bin/sh", func(string, bootstrap.Mode) []string { return []string{"-c", "kill -9 $$"} })
		return killed(ctx, dir, mode)
	}}
	for range 2 {
		err := validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.Nop())
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "corrupt")
		assert.True(t, datadir.SaysNothing(err))
	}
	assert.Equal(t, 2, looked, "it is looked at again although no file has changed")
	able = true
	require.NoError(t, validator.Validate(t.Context(), dir, bootstrap.Full, zerolog.Nop()))

	missing := InChild("/no/such/program", func(string, bootstrap.Mode) []string { return nil })
	assert.True(t, datadir.SaysNothing(errorOf(missing)(t.Context(), dir, bootstrap.Full)))
	assert.False(t, datadir.SaysNothing(errorOf(inChild("child-panic"))(t.Context(), dir, bootstrap.Full)))
}

// The Go runtime ends in one way over what it reads and over what the system does not give it.
func TestAChildThatGotNoThreadOrMemoryIsNoVerdictAgainstTheData(t *testing.T) {
	for what, says := range map[string]bool{"child-starved": false, "child-fault": true, "child-overflow": true, "child-panic": true} {
		assert.Equal(t, says, !datadir.SaysNothing(errorOf(inChild(what))(t.Context(), "/nowhere", bootstrap.Full)), what)
	}
}

// What a child cannot read may be whole. Nobody may take it for broken: that would be set aside, and an older state brought back.
func TestDataThatAChildCannotReadAreNotBroken(t *testing.T) {
	dir := datadirtest.New(t)
	held, err := bolt.Open(filepath.Join(dir, "member", "snap", "db"), 0o600, nil)
	require.NoError(t, err)
	for _, verify := range []Func{datadir.Verify, inChild("child-verify")} {
		err := errorOf(verify)(t.Context(), dir, bootstrap.Full)
		require.ErrorContains(t, err, "locked by another process")
		assert.True(t, datadir.SaysNothing(err))
	}
	require.NoError(t, held.Close())
	require.NoError(t, errorOf(inChild("child-verify"))(t.Context(), dir, bootstrap.Full))

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "member", "wal")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "wal"), nil, 0o600))
	for _, verify := range []Func{datadir.Verify, inChild("child-verify")} {
		err := errorOf(verify)(t.Context(), dir, bootstrap.Full)
		require.Error(t, err)
		assert.False(t, datadir.SaysNothing(err), "that is what is there: %v", err)
	}
}

func TestChildEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := errorOf(inChild("child-hang"))(ctx, "/data", bootstrap.Full)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "validation of /data was stopped")
	require.Less(t, time.Since(began), 10*time.Second)
}

// corruptions is what a longer run has more of: go test ./bootstrap/validation -run Random -corruptions 200.
var corruptions = flag.Uint64("corruptions", 12, "how many databases are corrupted at random")

// Whatever is flipped, the verdict is a word about a file, and this process lives on to read it.
func TestRandomCorruption(t *testing.T) {
	pristine := datadirtest.New(t)
	used := datadirtest.UsedBytes(t, pristine)
	pages := used / int64(os.Getpagesize())
	for seed := range *corruptions {
		random := rand.New(rand.NewPCG(seed, 1))
		dir := filepath.Join(t.TempDir(), "new.etcd")
		require.NoError(t, os.CopyFS(dir, os.DirFS(pristine)))
		for range 1 + seed {
			offset := random.Int64N(used)
			if seed%2 == 0 { // the header and first elements of a page, where the structure is
				offset = random.Int64N(pages)*int64(os.Getpagesize()) + random.Int64N(64)
			}
			datadirtest.Flip(t, dir+"/member/snap/db", offset)
		}
		err := errorOf(inChild("child-verify"))(t.Context(), dir, bootstrap.Full)
		t.Logf("%2d: %v", seed, err)
		if err != nil && !strings.HasPrefix(err.Error(), "validation crashed: ") {
			require.ErrorContains(t, err, "member/snap/db", "seed %d", seed)
		}
	}
}
