// Package child runs parts of the program in a separate process, either because corrupt data could crash them or
// because they must run at a low priority. Before a child process exits, it prints its result as a line of JSON.
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
	maxOutput = 64 << 10 // maximum number of bytes kept of each output stream
	maxCrash  = 256      // maximum number of characters quoted from a crash
	// wait limits how long Run reads output after the child has exited, because another process that inherited the
	// pipe may hold it open. The limit is generous, because reading can be slow on a busy machine.
	wait = 10 * time.Second
)

// Ended describes how a child has exited.
type Ended struct {
	Status int    // exit status, or -1 if a signal killed the child
	Crash  string // panic message, first error or line on stderr, or the status in words; "" if Status is 0
	stdout []byte
}

// Run runs a program and waits for it to exit. If ctx is done first, Run kills the child and returns the cause. On
// Linux, the child is also killed when this process dies. Any other error means that the program could not be
// started.
func Run(ctx context.Context, executable string, args ...string) (Ended, error) {
	var stdout, stderr head
	child := exec.CommandContext(ctx, executable, args...)
	child.Stdout, child.Stderr, child.WaitDelay = &stdout, &stderr, wait
	bindToParent(child)

	// Linux kills the child when the thread that started it exits, so the thread must live as long as the child.
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

// Decode decodes the last line of the child's stdout and reports whether decoding succeeded.
func (e Ended) Decode(into any) bool {
	stdout := bytes.TrimSpace(e.stdout)
	line := stdout[bytes.LastIndexByte(stdout, '\n')+1:]
	return json.Unmarshal(line, into) == nil
}

// crashReason returns the line in which the Go runtime reports a panic or fatal error. Without such a line, it
// returns the first line of stderr, or only the error if that line is a log line of this program. If stderr is empty,
// crashReason returns the exit status in words.
func crashReason(stderr []byte, exited *exec.ExitError) string {
	for line := range strings.Lines(string(stderr)) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return strings.TrimSpace(line)
		}
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(stderr)), "\n")
	var logged struct{ Error string }
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
