// Package child runs a part of the program in a separate process, because the data that it reads may crash it, or
// because it must leave resources to other processes. The process prints its result as a line of JSON when it ends.
package child

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

const (
	maxOutput = 64 << 10 // maximum bytes kept of each output stream of a child
	maxCrash  = 256      // maximum characters quoted from a crash
	// wait is the maximum time to read a child's output after its end, because another process could still hold it
	// open. On a busy machine reading may take a while.
	wait = 10 * time.Second
)

// Ended describes the end of a child.
type Ended struct {
	Status int    // exit status; -1 if a signal ended it
	Crash  string // first line of a panic or of stderr, or the status in words; set if Status is not 0
	stdout []byte
}

// Run runs a program until it ends. If ctx is done first, the child is killed and Run returns the cause; on Linux the
// child is also killed when this process dies. Any other error means that the program could not be run.
func Run(ctx context.Context, executable string, args ...string) (Ended, error) {
	var stdout, stderr head
	child := exec.CommandContext(ctx, executable, args...)
	child.Stdout, child.Stderr, child.WaitDelay = &stdout, &stderr, wait
	bindToParent(child)

	// Linux kills the child when the thread that started it ends, so the thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := child.Run()
	if ctx.Err() != nil {
		return Ended{}, context.Cause(ctx)
	}
	var exited *exec.ExitError
	switch {
	case err == nil:
		return Ended{stdout: stdout.kept}, nil
	case !errors.As(err, &exited):
		return Ended{}, err
	default:
		crash := fmt.Sprintf("%.*s", maxCrash, crashReason(stderr.kept, exited))
		return Ended{Status: exited.ExitCode(), Crash: crash, stdout: stdout.kept}, nil
	}
}

// Decode decodes the last line that the child wrote to stdout. It reports whether that succeeded.
func (e Ended) Decode(into any) bool {
	stdout := bytes.TrimSpace(e.stdout)
	line := stdout[bytes.LastIndexByte(stdout, '\n')+1:]
	return json.Unmarshal(line, into) == nil
}

// crashReason returns the line in which the Go runtime explains why it gave up. Any output may precede it.
func crashReason(stderr []byte, exited *exec.ExitError) string {
	for line := range strings.Lines(string(stderr)) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return strings.TrimSpace(line)
		}
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(stderr)), "\n")
	var logged struct{ Error string } // a line of this program's own log
	if json.Unmarshal([]byte(first), &logged) == nil && logged.Error != "" {
		return logged.Error
	}
	return cmp.Or(first, exited.String())
}

// A head is a writer that keeps the first maxOutput bytes and discards the rest.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	room := maxOutput - len(h.kept)
	h.kept = append(h.kept, p[:min(len(p), room)]...)
	return len(p), nil
}
