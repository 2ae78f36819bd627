// Package servers starts real object store servers for tests on loopback: versitygw for S3, fake-gcs-server for
// Google Cloud Storage, and Azurite for Azure. The servers are built or installed once from the testdata/servers
// module, and are kept in the user's cache directory. Servers are started only if the tests run with -servers, as in
// `make test-backup`.
package servers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/ports"
)

var wanted = flag.Bool("servers", false, "run the tests that need real object store servers")

// Keys for the servers. Azurite uses fixed keys that Microsoft has published.
const (
	S3Access     = "tester"
	S3Secret     = "test-secret"
	AzureAccount = "devstoreaccount1"
	AzureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// S3 starts versitygw and returns its endpoint. The server stops when the test ends.
func S3(t *testing.T) *url.URL {
	binary := build(t, "versitygw", "github.com/versity/versitygw/cmd/versitygw")
	return start(t, "", func(port string) *exec.Cmd {
		data, sidecar := t.TempDir(), t.TempDir()
		return exec.Command(binary, "--access", S3Access, "--secret", S3Secret, "--quiet", "--port", "127.0.0.1:"+port,
			"posix", "--sidecar", sidecar, data)
	})
}

// S3Env returns the environment variables for access to the server that S3 starts.
func S3Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + S3Access, "AWS_SECRET_ACCESS_KEY=" + S3Secret}
}

// S3URL returns the URL of a store in a bucket on an S3 server. The endpoint may also be a proxy for the server.
func S3URL(endpoint, bucket, prefix string) string {
	return fmt.Sprintf("s3://%s/%s?path-style=true&region=us-east-1&endpoint=%s", bucket, prefix, url.QueryEscape(endpoint))
}

// MakeS3Bucket creates a bucket on a server that S3 started.
func MakeS3Bucket(t *testing.T, server *url.URL, name string) {
	t.Helper()
	client, err := minio.New(server.Host, &minio.Options{Creds: credentials.NewStaticV4(S3Access, S3Secret, "")})
	require.NoError(t, err)
	require.NoError(t, client.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}))
}

// GCS starts fake-gcs-server and returns its endpoint. The server stops when the test ends.
func GCS(t *testing.T) *url.URL {
	binary := build(t, "fake-gcs-server", "github.com/fsouza/fake-gcs-server")
	return start(t, "", func(port string) *exec.Cmd {
		return exec.Command(binary, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-log-level", "error")
	})
}

// Azure starts Azurite and returns the endpoint of its account. The server stops when the test ends.
func Azure(t *testing.T) *url.URL {
	script := install(t, "azurite")
	return start(t, "/"+AzureAccount, func(port string) *exec.Cmd {
		return exec.Command("node", script, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", t.TempDir(),
			"--silent", "--disableTelemetry")
	})
}

// startTimeout limits how long a server may take to start, which can be several seconds on a busy machine.
const startTimeout = 2 * time.Minute

// start starts a server, waits until it responds, and returns its endpoint with the path. The server stops when the
// test ends.
func start(t *testing.T, path string, command func(port string) *exec.Cmd) *url.URL {
	endpoint := &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(t)), Path: path}
	var output bytes.Buffer
	server := command(endpoint.Port())
	server.Stdout, server.Stderr = &output, &output
	require.NoError(t, server.Start())
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-ended
	})
	client := &http.Client{Timeout: startTimeout}
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if response, err := client.Get(endpoint.String()); err == nil {
			_ = response.Body.Close()
			return endpoint
		}
		select {
		case <-ended:
			require.FailNow(t, "the server exited", "%s: %s", server.Path, &output)
		case <-time.After(50 * time.Millisecond):
		}
	}
	require.FailNow(t, "the server is not responding", server.Path)
	return nil
}

// build builds a program from the testdata/servers module, unless it was built with the same go.sum before, and
// returns its path.
func build(t *testing.T, name, pkg string) string {
	return ensureFile(t, "go.sum", name, func(from, into string) *exec.Cmd {
		return exec.Command("go", "build", "-C", from, "-o", filepath.Join(into, name), pkg)
	})
}

// install installs Azurite with npm, unless it was installed with the same package-lock.json before, and returns the
// path of its script.
func install(t *testing.T, name string) string {
	script := filepath.Join("node_modules", name, "dist", "src", "blob", "main.js")
	return ensureFile(t, "package-lock.json", script, func(from, into string) *exec.Cmd {
		const copied = "cp package.json package-lock.json \"$0\" && exec npm ci --prefix \"$0\" --ignore-scripts --no-audit --no-fund"
		command := exec.Command("sh", "-c", copied, into)
		command.Dir = from
		return command
	})
}

// ensureFile returns the path of a file in the cache and runs command to create the file if it is missing. If several
// packages are tested in parallel, one of them creates the file while the others wait. If the server cannot be
// installed, the test is skipped with a message on the terminal.
func ensureFile(t *testing.T, lock, file string, command func(from, into string) *exec.Cmd) string {
	t.Helper()
	if !*wanted {
		t.Skip(`the test requires a real server: run it with -servers or run "make test-backup"`)
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
	if output, err := command(from, into).CombinedOutput(); err != nil {
		sentence := fmt.Sprintf("SKIPPED %s: cannot install %s: %v", t.Name(), file, err)
		fmt.Fprintln(os.Stderr, sentence)
		t.Skipf("%s\n%s", sentence, output)
	}
	return path
}

// cache returns the directory of the testdata/servers module, which is in a parent directory of the test, and a cache
// directory for the current content of the lock file.
func cache(t *testing.T, lock string) (module, directory string) {
	for module = "testdata/servers"; ; module = filepath.Join("..", module) {
		if _, err := os.Stat(filepath.Join(module, "go.mod")); err == nil {
			break
		}
		require.Less(t, len(module), 100, "no parent directory contains testdata/servers")
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
