package verification

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// TestMain also runs the child process, which is either `<test binary> child-verify <store> <scratch> <generation>
// <full> <revision>` or a command that fails as its name indicates.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && children[os.Args[1]] != nil {
		os.Exit(children[os.Args[1]]())
	}
	status := m.Run()
	datadirtest.Clean()
	os.Exit(status)
}

var children = map[string]func() int{
	"child-verify": func() int { return verifyInThisProcess(os.Stdout) },
	"child-panic":  func() int { panic("the page is on fire") },
	"child-circle": func() int { debug.SetMaxStack(1 << 20); return circle(1) },
	"child-killed": func() int { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} },
	"child-silent": func() int { return 0 },
	"child-liar":   func() int { fmt.Println(`{"result":{}}`); return 1 },
	"child-hang":   func() int { time.Sleep(time.Hour); return 0 },
}

func circle(n int) int {
	if n == 0 {
		return 0
	}
	return circle(n+1) + n
}

func verifyInThisProcess(stdout io.Writer) int {
	s, err := locate.Open(os.Args[2])
	if err != nil {
		panic(err)
	}
	generation, _ := strconv.Atoi(os.Args[4])
	revision, _ := strconv.ParseInt(os.Args[6], 10, 64)
	job := Job{Generation: generation, Full: os.Args[5], Revision: revision}
	return RunChild(context.Background(), archive.New(s, &format.Keys{}), job, os.Args[3], stdout)
}

// inChild returns a function that runs a command of TestMain in a child process.
func inChild(what, store, scratch string) func(context.Context, archive.Path) (archive.Result, error) {
	return InChild(os.Args[0], func(job Job) []string {
		return []string{what, store, scratch, strconv.Itoa(job.Generation), job.Full, strconv.FormatInt(job.Revision, 10)}
	})
}

func TestInChild_returnsTheSameResult(t *testing.T) {
	url := "file://" + t.TempDir()
	s, err := locate.Open(url)
	require.NoError(t, err)
	w := newFixture(t, s, &format.Keys{})
	w.put(7)
	w.putFull()
	w.put(4)
	w.putSegment()
	for _, revision := range []int64{w.full.Revision, w.full.Revision + 2} {
		path, err := w.Find(t.Context(), archive.Target{Revision: revision})
		require.NoError(t, err)
		scratch := filepath.Join(t.TempDir(), "scratch")
		got, err := inChild("child-verify", url, scratch)(t.Context(), path)
		require.NoError(t, err)
		want, err := w.verify(w.job(revision))
		require.NoError(t, err)
		require.Equal(t, archive.Verified, got.Outcome)
		require.WithinDuration(t, want.At, got.At, time.Hour)
		want.At, want.Seconds = got.At, got.Seconds
		require.Equal(t, want, got)
		require.NoDirExists(t, scratch)
	}
	_, err = inChild("child-verify", "file://"+t.TempDir(), "/nowhere")(t.Context(), archive.Path{Full: w.full, Revision: 1})
	require.ErrorContains(t, err, "cannot verify a backup")
}

func TestInChild_failsWithoutOutput(t *testing.T) {
	for what, want := range map[string]string{
		"child-killed": "the process exited without a result: signal: killed",
		"child-silent": "the process exited without a result",
		"child-liar":   "the process exited without a result: exit status 1",
	} {
		_, err := inChild(what, "", "")(t.Context(), archive.Path{Revision: 5})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "the backup of revision 5")
	}
}

func TestInChild_reportsPanicsAsResults(t *testing.T) {
	for what, why := range map[string]string{
		"child-panic":  "the restore crashed: panic: the page is on fire",
		"child-circle": "the restore crashed: fatal error: stack overflow",
	} {
		result, err := inChild(what, "", "")(t.Context(), archive.Path{Full: archive.Full{Generation: 3}, Revision: 5})
		require.NoError(t, err)
		require.Equal(t, archive.Failed, result.Outcome)
		require.Equal(t, why, result.Why)
		require.Equal(t, 3, result.Generation)
	}
}

func TestInChild_endsWithItsContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(stopped) })
	_, err := inChild("child-hang", "", "")(ctx, archive.Path{Revision: 5})
	require.ErrorIs(t, err, stopped)
}
