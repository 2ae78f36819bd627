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

var only = flag.String("tests", ".", "a regular expression of those of etcd's tests that are run")

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// module is the import path of etcd's tests.
const module = "go.etcd.io/etcd/tests/v3/"

const founding = "one of its three members is reached by nobody: a cluster is founded only when every member has told that it has no data"

// different lists the tests that cannot pass with etcd-wrapper, each with the reason. A test that starts to pass must
// be removed.
var different = map[string]string{
	"TestAuthority": "it reads the lines that Go's HTTP/2 writes to standard error, and every line of ours is JSON",
	"TestBreakConsistentIndexNewerThanSnapshot":         "it damages the database and waits for etcd's panic: the validation finds the damage before etcd is started",
	"TestCtlV3GetRevokedCRL":                            "etcd's configuration file has no key for a list of revoked certificates",
	"TestCtlV3GetRevokedCRLGRPCOnly":                    "etcd's configuration file has no key for a list of revoked certificates",
	"TestEtcdPeerCNAuth":                                founding,
	"TestEtcdPeerMultiCNAuth":                           founding,
	"TestEtcdPeerNameAuth":                              founding,
	"TestEtcdPeerLocalAddr":                             founding,
	"TestEtcdDeprecatedFlags":                           "it waits for a warning about etcd's command line, which the program does not read",
	"TestServerJsonLogging":                             "it wants zap's names of a log line's fields, ts and caller, and ours are zerolog's",
	"TestNoMetricsMissing":                              "it wants the metrics of etcd's gRPC proxy, which is no part of the program",
	"TestEtcdListenMetricsURLsWithMissingClientTLSInfo": "its data directory has certificates in it: what is no etcd's is not taken for a new member's",
}

// TestEtcdSuites_passAsWithPlainEtcd runs etcd's own tests with plain etcd and with etcd-wrapper.
func TestEtcdSuites_passAsWithPlainEtcd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root makes networks and processes of a test's own")
	}
	plain, ours := binaries(t)
	for _, name := range []string{"common", "e2e"} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, name)
			count := map[string]int{}
			for _, test := range s.tests(t) {
				withPlain, withOurs := s.compare(t, test, plain, ours)
				count["plain etcd "+string(withPlain)]++
				count["the program "+string(withOurs)]++
				t.Logf("%s: %s with plain etcd, %s with the program", test, withPlain, withOurs)
			}
			t.Logf("%v", count)
		})
	}
}

// compare fails if a test passes with plain etcd but not with etcd-wrapper.
func (s suite) compare(t *testing.T, test, plain, ours string) (withPlain, withOurs outcome) {
	t.Helper()
	var output string
	var both sync.WaitGroup
	both.Go(func() { withPlain, _ = s.attempt(test, plain) })
	both.Go(func() { withOurs, output = s.attempt(test, ours) })
	both.Wait()
	switch why, differs := different[test]; {
	case differs:
		assert.Equal(t, failed, withOurs, "%s passes: remove it from different: %s", test, why)
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
	require.True(t, len(names) > 0 || *only != ".", "etcd has tests")
	return names
}

// An outcome is the result of a test.
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

// patience returns the timeout of a test. etcd's longest test takes two minutes on an idle machine. Tests with a
// known difference get a shorter timeout, because they may hang.
func patience(test string) string {
	if different[test] != "" {
		return "1m"
	}
	return "5m"
}

// run runs a test with the binaries in a directory. The test has its own network and PID namespaces, so the ports
// that etcd's tests use are free, and all processes are killed when it finishes.
func (s suite) run(test, binaries string) (ended outcome, output string) {
	command := exec.Command("sh", "-c", `ip link set lo up && exec "$0" "$@"`,
		s.program, "-test.run", "^"+test+"$", "-test.v", "-test.timeout", patience(test), "-bin-dir="+binaries)
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
