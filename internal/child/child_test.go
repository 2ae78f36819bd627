package child

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func shell(t *testing.T, script string) Ended {
	t.Helper()
	ended, err := Run(t.Context(), "/bin/sh", "-c", script)
	require.NoError(t, err)
	return ended
}

func TestDecode_lastLine(t *testing.T) {
	var result struct{ Good bool }
	require.True(t, shell(t, `echo noise; echo '{"good":true}'`).Decode(&result))
	require.True(t, result.Good)
	require.False(t, shell(t, `echo '{"good":true}'; echo noise`).Decode(&result))
	require.False(t, shell(t, ``).Decode(&result))
}

func TestCrash_isDescribedInOneLine(t *testing.T) {
	for script, want := range map[string]string{
		`echo 'panic: on fire' >&2; exit 2`:                                                "panic: on fire",
		`echo 'first' >&2; echo second >&2; exit 3`:                                        "first",
		`echo '{"level":"error","error":"no key","message":"it has failed"}' >&2; exit 64`: "no key",
		`echo '{"level":"error"}' >&2; exit 64`:                                            `{"level":"error"}`,
		`exit 4`:                                                                           "exit status 4",
		`kill -9 $$`:                                                                       "signal: killed",
		`head -c 100000 /dev/zero | tr '\0' a; exit 5`:                                     "exit status 5",
	} {
		ended := shell(t, script)
		require.Equal(t, want, ended.Crash)
		require.NotZero(t, ended.Status)
		require.LessOrEqual(t, len(ended.stdout), maxOutput)
	}
}

// Run must return the output even if another process keeps the pipe open after the child has exited.
func TestRun_outputOpenAfterExit(t *testing.T) {
	var result struct{ Good bool }
	require.True(t, shell(t, `sleep 1 & echo '{"good":true}'`).Decode(&result))
}

func TestChild_endsWithItsContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(stopped) })
	start := time.Now()
	_, err := Run(ctx, "/bin/sh", "-c", "exec sleep 1000")
	require.ErrorIs(t, err, stopped)
	require.Less(t, time.Since(start), 30*time.Second)
}

func TestRun_missingProgram(t *testing.T) {
	_, err := Run(t.Context(), "/no/such/program")
	require.ErrorIs(t, err, os.ErrNotExist)
}
