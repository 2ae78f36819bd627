package harness

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Spot is a system call on a path, the Count-th of its kind.
type Spot struct {
	Call, Path string
	Count      int
}

// NeedStrace skips a test where there is no strace that works.
func NeedStrace(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("strace", "-qqq", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("skipped: strace does not work here: %v: %s", err, out)
	}
}

// Hit plays a fault at a spot, in strace's words.
func (s Spot) Hit(fault string) []string {
	return []string{"-P", s.Path, "-e", "trace=" + s.Call, "-e", "inject=" + s.Call + ":" + fault}
}

// Straced makes the pod run its programs under strace, as a grandchild: the process is the program itself.
func (p *Pod) Straced(args ...string) {
	p.Under = append([]string{"strace", "-D", "-f", "-qqq", "-o", p.tracePath()}, args...)
}

func (p *Pod) tracePath() string { return filepath.Join(p.Dir, "trace") }

var traced = regexp.MustCompile(`^\d+ +(\w+)\((?:\d+<([^>]+)>|AT_FDCWD<[^>]*>, "([^"]+)")`)

// Trace runs the pod through a life under strace and returns its calls of those kinds that succeeded on paths of the
// volume, in the order in which they returned.
func (p *Pod) Trace(calls string, life func()) (spots []Spot) {
	p.T.Helper()
	p.Straced("-y", "-z", "-e", "trace="+calls)
	life()
	p.Under = nil
	counts := map[Spot]int{}
	text, err := os.Open(p.tracePath())
	require.NoError(p.T, err)
	defer text.Close() // read only
	for lines := bufio.NewScanner(text); lines.Scan(); {
		found := traced.FindStringSubmatch(lines.Text())
		if found == nil || !strings.HasPrefix(found[2]+found[3], p.Volume) {
			continue
		}
		at := Spot{Call: found[1], Path: found[2] + found[3]}
		counts[at]++
		spots = append(spots, Spot{at.Call, at.Path, counts[at]})
	}
	return spots
}
