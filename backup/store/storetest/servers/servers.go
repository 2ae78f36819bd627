// Package servers starts real servers of object stores for tests, as processes on loopback: versitygw for S3, fake-gcs-server
// for Google Cloud Storage, Azurite for Azure. They are built or installed from the module in testdata/servers, once, into the
// user's cache directory. Nothing is started unless the tests run with -servers, as `make test-backup` does.
package servers

import (
	"bytes"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var wanted = flag.Bool("servers", false, "run the tests that need real servers of object stores")

// Keys of the servers. Azurite's are Microsoft's, published and the same everywhere.
const (
	S3Access     = "tester"
	S3Secret     = "test-secret"
	AzureAccount = "devstoreaccount1"
	AzureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// S3 starts versitygw and returns its endpoint. It ends with the test.
func S3(t *testing.T) *url.URL {
	binary := build(t, "versitygw", "github.com/versity/versitygw/cmd/versitygw")
	return start(t, "", func(port string) *exec.Cmd {
		data, sidecar := t.TempDir(), t.TempDir()
		return exec.Command(binary, "--access", S3Access, "--secret", S3Secret, "--quiet", "--port", "127.0.0.1:"+port,
			"posix", "--sidecar", sidecar, data)
	})
}

// GCS starts fake-gcs-server and returns its endpoint. It ends with the test.
func GCS(t *testing.T) *url.URL {
	binary := build(t, "fake-gcs-server", "github.com/fsouza/fake-gcs-server")
	return start(t, "", func(port string) *exec.Cmd {
		return exec.Command(binary, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-log-level", "error")
	})
}

// Azure starts Azurite and returns the endpoint of its account. It ends with the test.
func Azure(t *testing.T) *url.URL {
	script := install(t, "azurite")
	return start(t, "/"+AzureAccount, func(port string) *exec.Cmd {
		return exec.Command("node", script, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", t.TempDir(),
			"--silent", "--disableTelemetry")
	})
}

// patience limits the start of a server, which takes seconds on a busy machine.
const patience = 2 * time.Minute

// start runs a server at a free port, and tries others if the port is taken meanwhile.
func start(t *testing.T, path string, command func(port string) *exec.Cmd) *url.URL {
	var err error
	for range 3 {
		listener, failed := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, failed)
		endpoint := &url.URL{Scheme: "http", Host: listener.Addr().String(), Path: path}
		require.NoError(t, listener.Close())
		if err = run(t, endpoint, command(endpoint.Port())); err == nil {
			return endpoint
		}
	}
	require.NoError(t, err)
	return nil
}

// run starts a server, which ends with the test, and returns when it responds.
func run(t *testing.T, endpoint *url.URL, command *exec.Cmd) error {
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, command.Start())
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
	})
	client := &http.Client{Timeout: patience}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if response, err := client.Get(endpoint.String()); err == nil {
			return response.Body.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("%s ended: %s", filepath.Base(command.Path), &output)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not respond", filepath.Base(command.Path))
}
