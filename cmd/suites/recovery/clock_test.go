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

// clockAhead is the environment variable that sets how many seconds fast a skewed program's clock is.
const clockAhead = "CLOCK_AHEAD"

// Patch for time.Now that adds the seconds in clockAhead.
const (
	asks     = "\tsec, nsec, mono := runtimeNow()\n"
	asksWith = asks + "\tsec += clockAhead\n"
	ahead    = `package time

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

// skewed builds the program with an adjustable clock, once for all suites. A static program reads the time directly
// from the kernel, so its clock cannot be changed from outside. The first build takes minutes, because every package
// depends on package time.
var skewed = sync.OnceValues(func() (path string, err error) {
	return harness.BuildCustom("skewed", func(folder string) ([]string, error) {
		overlay, err := clockOverlay(folder)
		return []string{"-overlay", overlay}, err
	})
})

// setClock makes the pod start programs whose clock is a whole number of seconds fast.
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
	altered := strings.Replace(string(source), asks, asksWith, 1)
	if altered == string(source) {
		return "", errors.New("package time no longer reads the clock in the expected way")
	}
	now, ours := filepath.Join(folder, "time.txt"), filepath.Join(folder, "ahead.txt") // not .go, because go build ./... must ignore the files
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		original: now, filepath.Join(filepath.Dir(original), "ahead.go"): ours,
	}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "overlay.json")
	return path, errors.Join(os.MkdirAll(folder, 0o755),
		os.WriteFile(now, []byte(altered), 0o600), os.WriteFile(ours, []byte(ahead), 0o600), os.WriteFile(path, replace, 0o600))
}
