// Package suites runs etcd's own end-to-end tests with plain etcd and with etcd-wrapper, and compares the results.
package suites

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

var only = flag.String("tests", ".", "run only those of etcd's tests that match this regular expression")

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// module is the import path of etcd's tests.
const module = "go.etcd.io/etcd/tests/v3/"

const founding = "one of the three members is unreachable, and etcd-wrapper creates a cluster only after every member has reported that it has no data"

// different maps the names of tests that cannot pass with etcd-wrapper to the reasons. If one of them passes, the
// comparison fails, so that it is removed from the map.
var different = map[string]string{
	"TestAuthority": "the test parses lines that Go's HTTP/2 package writes to standard error, but etcd-wrapper writes only JSON lines",
	"TestBreakConsistentIndexNewerThanSnapshot":         "the test damages the database and waits for etcd to panic, but the validation detects the damage before etcd is started",
	"TestCtlV3GetRevokedCRL":                            "etcd's configuration file has no setting for a certificate revocation list",
	"TestCtlV3GetRevokedCRLGRPCOnly":                    "etcd's configuration file has no setting for a certificate revocation list",
	"TestEtcdPeerCNAuth":                                founding,
	"TestEtcdPeerMultiCNAuth":                           founding,
	"TestEtcdPeerNameAuth":                              founding,
	"TestEtcdPeerLocalAddr":                             founding,
	"TestEtcdDeprecatedFlags":                           "the test waits for a warning about etcd's command line, but etcd-wrapper reads only a configuration file",
	"TestServerJsonLogging":                             "the test expects zap's log fields ts and caller, but etcd-wrapper logs with zerolog, which names them differently",
	"TestNoMetricsMissing":                              "the test expects the metrics of etcd's gRPC proxy, which etcd-wrapper does not contain",
	"TestEtcdListenMetricsURLsWithMissingClientTLSInfo": "the data directory contains certificates, so etcd-wrapper does not accept it as the data directory of a new member",
}

// TestEtcdSuites_passAsWithPlainEtcd runs etcd's own tests with plain etcd and with etcd-wrapper.
func TestEtcdSuites_passAsWithPlainEtcd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can create network and PID namespaces")
	}
	plain, ours := binaries(t)
	for _, name := range []string{"common", "e2e"} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, name)
			count := map[string]int{}
			for _, test := range s.tests(t) {
				withPlain, withOurs := s.compare(t, test, plain, ours)
				count["plain etcd "+string(withPlain)]++
				count["etcd-wrapper "+string(withOurs)]++
				t.Logf("%s: %s with plain etcd, %s with etcd-wrapper", test, withPlain, withOurs)
			}
			t.Logf("%v", count)
		})
	}
}

// compare runs a test with both programs. It fails if the test does not fail with plain etcd and has a different result
// with etcd-wrapper, or if a test in different does not fail with etcd-wrapper.
func (s suite) compare(t *testing.T, test, plain, ours string) (withPlain, withOurs outcome) {
	t.Helper()
	var output string
	var both sync.WaitGroup
	both.Go(func() { withPlain, _ = s.attempt(test, plain) })
	both.Go(func() { withOurs, output = s.attempt(test, ours) })
	both.Wait()
	switch why, differs := different[test]; {
	case differs:
		assert.Equal(t, failed, withOurs, "%s now passes with etcd-wrapper; remove it from different (reason given there: %s)", test, why)
	case withPlain != failed:
		assert.Equal(t, withPlain, withOurs, "%s\n%s", test, output)
	}
	return withPlain, withOurs
}

// binaries returns two directories with the layout that etcd's tests expect: one contains plain etcd, and the other
// contains etcd-wrapper in place of etcd.
func binaries(t *testing.T) (plain, ours string) {
	t.Helper()
	plain, ours = t.TempDir(), t.TempDir()
	build(t, filepath.Join(plain, "etcd"), "go.etcd.io/etcd/server/v3")
	build(t, filepath.Join(ours, "etcd"), "../shim")
	for _, tool := range []string{"etcdctl", "etcdutl"} {
		build(t, filepath.Join(plain, tool), "go.etcd.io/etcd/"+tool+"/v3")
		require.NoError(t, os.Symlink(filepath.Join(plain, tool), filepath.Join(ours, tool)))
	}
	require.NoError(t, os.Symlink(filepath.Join(plain, "etcd"), filepath.Join(ours, "plain-etcd")))
	require.NoError(t, os.Symlink(harness.Built(t), filepath.Join(ours, "etcd-wrapper")))
	return plain, ours
}

func build(t *testing.T, path, of string) {
	t.Helper()
	out, err := exec.Command("go", "build", "-o", path, of).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// A suite is the compiled test binary of one of etcd's test packages, together with its working directory.
type suite struct{ program, directory string }

func compiled(t *testing.T, name string) suite {
	t.Helper()
	s := suite{program: filepath.Join(t.TempDir(), name)}
	out, err := exec.Command("go", "test", "-c", "-tags", "e2e", "-o", s.program, module+name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	directory, err := exec.Command("go", "list", "-tags", "e2e", "-f", "{{.Dir}}", module+name).Output()
	require.NoError(t, err)
	s.directory = strings.TrimSpace(string(directory))
	return s
}

// tests returns the names of the tests to run.
func (s suite) tests(t *testing.T) []string {
	t.Helper()
	command := exec.Command(s.program, "-test.list", *only)
	command.Dir = s.directory
	out, err := command.Output()
	require.NoError(t, err)
	names := strings.Fields(string(out))
	require.True(t, len(names) > 0 || *only != ".", "the binary lists no tests")
	return names
}

// An outcome is the result of one of etcd's tests.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"
)

// tries is the maximum number of times that a test is run with each program, because some of etcd's tests are flaky
// on a busy machine.
const tries = 3

func (s suite) attempt(test, binaries string) (ended outcome, output string) {
	for range tries {
		if ended, output = s.run(test, binaries); ended != failed || different[test] != "" {
			break
		}
	}
	return ended, output
}

// timeoutOf returns the timeout of a test. etcd's longest test takes two minutes on an idle machine. Tests with a
// known difference get a shorter timeout, because they may hang.
func timeoutOf(test string) string {
	if different[test] != "" {
		return "1m"
	}
	return "5m"
}

// run runs a test with the binaries in a directory. The test has its own network and PID namespaces, so the ports
// that etcd's tests use are free, and all processes are killed when it finishes.
func (s suite) run(test, binaries string) (ended outcome, output string) {
	command := exec.Command("sh", "-c", `ip link set lo up && exec "$0" "$@"`,
		s.program, "-test.run", "^"+test+"$", "-test.v", "-test.timeout", timeoutOf(test), "-bin-dir="+binaries)
	command.Dir = s.directory
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	out, err := command.CombinedOutput()
	text := string(out)
	switch {
	case err != nil:
		return failed, err.Error() + ": " + text[max(0, len(text)-16<<10):]
	case strings.Contains(text, "--- SKIP: "+test):
		return skipped, ""
	default:
		return passed, ""
	}
}
