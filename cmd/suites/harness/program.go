package harness

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// parallel is the default of -parallel in the suites, whose tests spend most of their time waiting.
const parallel = "6"

// Program is the path of the program under test. It is built when the first test needs it, unless the suite builds a
// different program.
var Program string

// DetectRaces makes the program under test use the race detector if the tests themselves use it. The detector triples
// the CPU time of every process, so only the suite that covers all features uses it by default.
var DetectRaces = flag.Bool("detect-races", false, "build the program with the race detector if the tests use it")

// directory contains the program that this suite runs.
var directory string

// Main runs a suite's tests and returns the exit status. It is called by TestMain.
func Main(m *testing.M) int {
	flag.Parse()
	http.DefaultClient.Timeout = Patience
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	var err error
	if directory, err = os.MkdirTemp("", "etcd-wrapper-test-"); err == nil {
		defer func() { _ = os.RemoveAll(directory) }() // a leftover temporary directory does no harm
		if !given {
			err = flag.Set("test.parallel", parallel)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the tests:", err)
		return 1
	}
	return m.Run()
}

var prepared = sync.OnceValue(func() error {
	if Program != "" {
		return nil
	}
	Program = filepath.Join(directory, "etcd-wrapper")
	return buildProgram(Program)
})

// Built returns the path of the program under test, building it first if necessary.
func Built(t *testing.T) string {
	t.Helper()
	require.NoError(t, prepared(), "cannot build the program under test")
	return Program
}

// buildProgram builds the program and copies it to the given path. All suites build the same file, one suite at a
// time. Go does not link an up-to-date program again, so only the first suite has to wait for the build.
func buildProgram(path string) error {
	_, err := shared(withRaceSuffix("etcd-wrapper"), func(root, built string) error {
		if err := errors.Join(build(root, built, Stillness), openSources(root)); err != nil {
			return err
		}
		// A suite runs a copy, because the next suite's build rewrites the file. It is copied by cp: if this process
		// opened the file itself, Go would never reuse a cached test result, because the file has changed since.
		return exec.Command("cp", built, path).Run()
	})
	return err
}

// shared calls build with a path in bin/test that is the same for all suites, and returns that path. A lock ensures
// that only one process at a time builds the named program.
func shared(name string, build func(root, path string) error) (path string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path = filepath.Join(root, "bin", "test", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	lock, err := fileutil.LockFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	return path, build(root, path)
}

// moduleRoot returns the root directory of the main module, even for a suite in a separate module.
func moduleRoot() (string, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "etcd-wrapper").Output()
	return strings.TrimSpace(string(dir)), err
}

// Stillness is the time after the backup writer's last heartbeat at which a restore considers the writer stopped. In a
// release, it is 90 s. Because an idle process sends a heartbeat only every 30 s, a test that needs an active writer
// must keep writing to its member.
const Stillness = 2 * time.Second

// BuildAsReleased builds the program once for all suites. Like a release, it waits for 90 s instead of Stillness.
func BuildAsReleased() (path string, err error) {
	return shared(withRaceSuffix("etcd-wrapper-as-released"), func(root, path string) error { return build(root, path, 90*time.Second) })
}

// BuildCustom builds the program once for all suites, with the go build flags that prepare returns. prepare writes
// the files for these flags to a directory.
func BuildCustom(name string, prepare func(folder string) ([]string, error)) (path string, err error) {
	return shared(withRaceSuffix("etcd-wrapper-"+name), func(root, path string) error {
		flags, err := prepare(path + "-files")
		if err != nil {
			return err
		}
		return build(root, path, Stillness, flags...)
	})
}

// withRaceSuffix adds a suffix to the name of a program that is built with the race detector.
func withRaceSuffix(name string) string {
	if detectsRaces() {
		name += "-race"
	}
	return name
}

func build(root, path string, stillness time.Duration, flags ...string) error {
	command := exec.Command("go", "build", "-ldflags", "-X etcd-wrapper/recovery.stillness="+stillness.String(), "-o", path)
	command.Dir, command.Stderr = root, os.Stderr
	if detectsRaces() {
		command.Args = append(command.Args, "-race") // like the tests, so that the packages compiled for them are reused
	} else {
		command.Args, command.Env = append(command.Args, "-trimpath"), append(os.Environ(), "CGO_ENABLED=0") // like make build
	}
	command.Args = append(append(command.Args, flags...), "./cmd/etcd-wrapper")
	return command.Run()
}

// detectsRaces reports whether the program under test is built with the race detector.
func detectsRaces() bool {
	info, ok := debug.ReadBuildInfo()
	return *DetectRaces && ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// openSources opens every directory of the module, to make the cached test results depend on them. Go reuses a result
// until a file that the test opened changes, but does not know that these tests depend on the program's sources.
func openSources(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another test has removed the directory
		}
		if err != nil || !entry.IsDir() {
			return err
		}
		if path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return fs.SkipDir
		}
		if folder, err := os.Open(path); err == nil {
			_ = folder.Close() // only opening the directory matters
		}
		return nil
	})
}

// Command is a running subcommand of the program other than start-etcd.
type Command struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   string // path of the file to which standard output is redirected
	log   bytes.Buffer
	ended chan struct{}
}

// Begin starts a subcommand that contacts the pod's wrapper.
func (p *Pod) Begin(args ...string) *Command {
	p.T.Helper()
	if args[0] == "etcdctl" { // most etcdctl commands prefer this flag over the environment
		args = slices.Insert(slices.Clone(args), 1, "--command-timeout="+Patience.String(), "--dial-timeout="+Patience.String())
	}
	return p.BeginProgram(exec.Command(Program, args...))
}

// BeginProgram starts a command with the pod's environment.
func (p *Pod) BeginProgram(cmd *exec.Cmd) *Command {
	p.T.Helper()
	out, err := os.CreateTemp(p.Dir, "out-")
	require.NoError(p.T, err)
	defer out.Close() // the started process has its own file descriptor
	c := &Command{t: p.T, cmd: cmd, out: out.Name(), ended: make(chan struct{})}
	c.cmd.Env = p.environment(append(slices.Clone(p.Env),
		"ETCD_WRAPPER_ETCD_WRAPPER_PORT="+fmt.Sprint(p.Port), "ETCD_WRAPPER_STORED_CONFIG_PATH="+p.StoredConfig())...)
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.WaitDelay = out, &c.log, Patience
	require.NoError(p.T, c.cmd.Start())
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // the result is in ProcessState
	}()
	p.T.Cleanup(func() {
		_ = c.cmd.Process.Kill() // the process may have exited already
		Receive(p.T, c.cmd.String()+" exits after SIGKILL", c.ended)
	})
	return c
}

// Output returns the output of the command so far.
func (c *Command) Output() string {
	c.t.Helper()
	content, err := os.ReadFile(c.out)
	require.NoError(c.t, err)
	return string(content)
}

// Wait waits until the command has exited, and returns its standard output, standard error and exit status.
func (c *Command) Wait() (out, log string, status int) {
	c.t.Helper()
	Receive(c.t, c.cmd.String()+" exits", c.ended)
	return c.Output(), c.log.String(), c.cmd.ProcessState.ExitCode()
}

// Output runs a subcommand that does not need a pod, and returns its output.
func Output(t *testing.T, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	ctx, cancel := WithPatience(t.Context())
	defer cancel()
	command := exec.CommandContext(ctx, Built(t), args...)
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String())
	return string(out)
}

// Signal sends a signal to the command.
func (c *Command) Signal(s syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(s))
}

// Stop sends SIGTERM and waits until the command has exited.
func (c *Command) Stop() {
	c.t.Helper()
	c.Signal(syscall.SIGTERM)
	c.Wait()
}

// oldEtcds maps etcd versions to functions that build them, once for all suites. The first build takes half a minute.
var oldEtcds = map[string]func() (path string, err error){
	"3.4": sync.OnceValues(func() (string, error) { return buildEtcd("3.4", "etcd34", "go.etcd.io/etcd") }),
	"3.5": sync.OnceValues(func() (string, error) { return buildEtcd("3.5", "etcd35", "go.etcd.io/etcd/server/v3") }),
}

// OldEtcd returns the path of an etcd 3.4 or 3.5 binary, building it first if necessary. It skips the test if the
// modules are not in the Go module cache, because tests do not use the network.
func OldEtcd(t *testing.T, version string) (path string) {
	t.Helper()
	path, err := oldEtcds[version]()
	if errors.Is(err, errNotFetched) {
		t.Skip(err)
	}
	require.NoError(t, err, "cannot build etcd %s", version)
	return path
}

var errNotFetched = errors.New("an old etcd version is not in the Go module cache; run make fetch to download it")

// buildEtcd builds an old etcd version from the module in testdata that requires it.
func buildEtcd(version, folder, program string) (path string, err error) {
	return shared("etcd-"+version, func(root, path string) error {
		build := exec.Command("go", "build", "-C", filepath.Join(root, "testdata", folder), "-o", path, program)
		build.Env = append(os.Environ(), "GOPROXY=off")
		output, err := build.CombinedOutput()
		switch {
		case err == nil:
			return nil
		case bytes.Contains(output, []byte("GOPROXY=off")):
			return errNotFetched
		default:
			return fmt.Errorf("%w: %s", err, output)
		}
	})
}

// OneLine replaces each run of whitespace with a single space, so that a test can find text that a command has wrapped
// for a terminal.
func OneLine(output string) string { return strings.Join(strings.Fields(output), " ") }
