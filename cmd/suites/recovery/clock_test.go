package recovery_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// clockAhead is the environment variable by which the clock of a skewed program is fast, in seconds.
const clockAhead = "CLOCK_AHEAD"

// A patch for package time: readClock is replaced by readClockWith, and ahead is the content of an additional file.
const (
	readClock     = "\tsec, nsec, mono := runtimeNow()\n"
	readClockWith = readClock + "\tsec += clockAhead\n"
	ahead         = `package time

import "syscall"

var clockAhead = func() (seconds int64) {
	of, _ := syscall.Getenv("` + clockAhead + `")
	digits, behind := of, false
	if of != "" && of[0] == '-' {
		digits, behind = of[1:], true
	}
	for _, digit := range []byte(digits) {
		seconds = 10*seconds + int64(digit-'0')
	}
	if behind {
		return -seconds
	}
	return seconds
}()
`
)

// skewed builds the program with a patched package time, once for all suites. The clock of a static program cannot be
// changed from outside, because the program reads the time directly from the kernel. The first build takes minutes,
// because almost every package depends on package time.
var skewed = sync.OnceValues(func() (path string, err error) {
	return harness.BuildCustom("skewed", func(folder string) ([]string, error) {
		overlay, err := clockOverlay(folder)
		return []string{"-overlay", overlay}, err
	})
})

// setClock makes the pod run a program whose clock is fast by the given time, or slow if the time is negative.
func setClock(p *harness.Pod, ahead time.Duration) {
	p.T.Helper()
	program, err := skewed()
	require.NoError(p.T, err)
	p.Program, p.Env = program, append(p.Env, fmt.Sprintf("%s=%.0f", clockAhead, ahead.Seconds()))
}

// clockOverlay writes the patched files of package time to a directory, together with the overlay file that lists
// them for go build.
func clockOverlay(folder string) (path string, err error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "time").Output()
	if err != nil {
		return "", err
	}
	original := filepath.Join(strings.TrimSpace(string(dir)), "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	patched := strings.Replace(string(source), readClock, readClockWith, 1)
	if patched == string(source) {
		return "", errors.New("package time no longer reads the clock in the expected way")
	}
	// The names do not end in .go, so that go build does not compile the files as part of a package.
	now, added := filepath.Join(folder, "time.txt"), filepath.Join(folder, "ahead.txt")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		original: now, filepath.Join(filepath.Dir(original), "ahead.go"): added,
	}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "overlay.json")
	return path, errors.Join(os.MkdirAll(folder, 0o755),
		os.WriteFile(now, []byte(patched), 0o600), os.WriteFile(added, []byte(ahead), 0o600), os.WriteFile(path, replace, 0o600))
}
