// Package servers starts real servers of object stores for tests, as processes on loopback: versitygw for S3, fake-gcs-server
// for Google Cloud Storage, Azurite for Azure. They are built or installed from the module in testdata/servers, once, into the
// user's cache directory. Nothing is started unless the tests run with -servers, as `make test-backup` does.
package servers

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/ports"
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

// start runs a server and returns its endpoint, with the path, when it responds. It ends with the test.
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
	client := &http.Client{Timeout: patience}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if response, err := client.Get(endpoint.String()); err == nil {
			_ = response.Body.Close()
			return endpoint
		}
		select {
		case <-ended:
			require.FailNow(t, "the server has ended", "%s: %s", server.Path, &output)
		case <-time.After(50 * time.Millisecond):
		}
	}
	require.FailNow(t, "the server does not respond", server.Path)
	return nil
}
