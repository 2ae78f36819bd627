package harness

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// parallel is how many tests run at a time: they wait far more than they compute.
const parallel = "6"

// Program is the path of the program under test. It is set before the first test.
var Program string

// Main is what the TestMain of a suite calls: it builds the program, runs the tests and returns the exit status.
func Main(m *testing.M) int {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run() // it names tests and runs none
	}
	dir, err := os.MkdirTemp("", "etcd-wrapper-test-")
	if err == nil {
		defer os.RemoveAll(dir) // a temporary directory
		Program = filepath.Join(dir, "etcd-wrapper")
		err = provide(Program)
	}
	if err == nil {
		err = flag.Set("test.parallel", parallel)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the program under test:", err)
		return 1
	}
	go measurePace()
	return m.Run()
}

// provide builds the program and copies it to a path. All suites build to one place, one at a time: Go compares what is
// there with the sources and links again only what has changed, so that the second suite need not wait.
func provide(path string) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	built := filepath.Join(root, "bin", "test", "etcd-wrapper")
	if underRace() {
		built += "-race"
	}
	if err := os.MkdirAll(filepath.Dir(built), 0o755); err != nil {
		return err
	}
	release, err := lock(built + ".lock")
	if err != nil {
		return err
	}
	defer release()
	if err := build(root, built); err != nil {
		return err
	}
	if err := dependOnSources(root); err != nil {
		return err
	}
	return copyProgram(built, path)
}

func moduleRoot() (string, error) {
	file, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(strings.TrimSpace(string(file))), err
}

func build(root, path string) error {
	args := []string{"build", "-o", path, "./cmd/etcd-wrapper"}
	if underRace() {
		args = slices.Insert(args, 1, "-race")
	}
	command := exec.Command("go", args...)
	command.Dir, command.Stderr = root, os.Stderr
	return command.Run()
}

// underRace reports whether these tests look for data races; the program that they run does the same then.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// dependOnSources looks at every folder of the module. Go keeps a test's result for as long as nothing changes that the
// test has looked at, and would not know that these tests depend on the program.
func dependOnSources(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
}

// lock waits until no other process holds the file.
func lock(path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return func() { _ = file.Close() }, unix.Flock(int(file.Fd()), unix.LOCK_EX)
}

// copyProgram makes the tests independent of the next build.
func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close() // the copy is of no use
		return err
	}
	return target.Close()
}
