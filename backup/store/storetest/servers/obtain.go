package servers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// build returns a program of the module testdata/servers. It is built at most once for each content of go.sum.
func build(t *testing.T, name, pkg string) string {
	return obtain(t, "go.sum", name, func(from, into string) *exec.Cmd {
		return exec.Command("go", "build", "-C", from, "-o", filepath.Join(into, name), pkg)
	})
}

// install returns the script of Azurite, which npm installs at most once for each content of package-lock.json.
func install(t *testing.T, name string) string {
	script := filepath.Join("node_modules", name, "dist", "src", "blob", "main.js")
	return obtain(t, "package-lock.json", script, func(from, into string) *exec.Cmd {
		const copied = "cp package.json package-lock.json \"$0\" && exec npm ci --prefix \"$0\" --ignore-scripts --no-audit --no-fund"
		command := exec.Command("sh", "-c", copied, into)
		command.Dir = from
		return command
	})
}

// obtain returns the path of a file in the cache, and runs command to create it if it is missing. Packages are tested in parallel;
// one creates the file while the others wait. A server that is unavailable skips the test, which is also shown on the terminal.
func obtain(t *testing.T, lock, file string, command func(from, into string) *exec.Cmd) string {
	t.Helper()
	if !*wanted {
		t.Skip("this needs a real server: run the tests with -servers, or make test-backup")
	}
	from, into := cache(t, lock)
	held, err := os.OpenFile(into+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	path := filepath.Join(into, file)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	require.NoError(t, os.MkdirAll(into, 0o700))
	if said, err := command(from, into).CombinedOutput(); err != nil {
		sentence := fmt.Sprintf("SKIPPED %s: %s can't be had: %v", t.Name(), file, err)
		fmt.Fprintln(os.Stderr, sentence)
		t.Skipf("%s\n%s", sentence, said)
	}
	return path
}

// cache returns the module of the servers, above the test, and a directory for the content of its lock file.
func cache(t *testing.T, lock string) (module, directory string) {
	for module = "testdata/servers"; ; module = filepath.Join("..", module) {
		if _, err := os.Stat(filepath.Join(module, "go.mod")); err == nil {
			break
		}
		require.Less(t, len(module), 100, "testdata/servers is not above the test")
	}
	content, err := os.ReadFile(filepath.Join(module, lock))
	require.NoError(t, err)
	base, err := os.UserCacheDir()
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	directory = filepath.Join(base, "etcd-wrapper-servers", lock+"-"+hex.EncodeToString(sum[:6]))
	require.NoError(t, os.MkdirAll(filepath.Dir(directory), 0o700))
	return module, directory
}
