package harness

import (
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/ports"
)

// A Pod is everything that outlives a process: the volume, the sidecar, the configuration and the ports.
type Pod struct {
	T       *testing.T
	Dir     string // HOME of the pod's processes; also contains the volume and other files
	Volume  string
	Sidecar *Sidecar
	Config  map[string]any // configuration that the sidecar serves; must not change while a process is running
	Flags   []string
	Env     []string // environment of all processes of the pod
	Under   []string // command under which to run the program, such as strace; empty to run the program directly
	Program string   // program to run instead of the program under test, if not empty

	Port, ClientPort, PeerPort int         // ports of the wrapper and etcd
	Trust                      *tls.Config // TLS configuration for clients of the wrapper; nil for plain HTTP
	Identity                   *tls.Config // TLS configuration for clients of etcd
}

// NewPodWithStoppedSidecar returns a pod whose sidecar refuses connections until the test calls Sidecar.Listen.
func NewPodWithStoppedSidecar(t *testing.T) *Pod {
	t.Helper()
	p := NewPod(t)
	p.Sidecar.stopped, p.Sidecar.Port = true, ports.Lease(t)
	return p
}

// NewPod returns a pod whose sidecar starts listening when the first process is started. Tests must script the
// sidecar before that.
func NewPod(t *testing.T) *Pod {
	t.Helper()
	Built(t)
	dir := t.TempDir()
	p := &Pod{
		T: t, Dir: dir, Volume: filepath.Join(dir, "volume"),
		Port: ports.Lease(t), ClientPort: ports.Lease(t), PeerPort: ports.Lease(t),
	}
	require.NoError(t, os.Mkdir(p.Volume, 0o700))
	p.Config = p.SingleMember()
	p.Sidecar = newSidecar(t, func() map[string]any { return p.Config })
	return p
}

// NewStandalonePod returns a pod without a sidecar. The pod reads a configuration file, which contains the default
// configuration of a single member and the keys in more.
func NewStandalonePod(t *testing.T, more map[string]any) *Pod {
	t.Helper()
	p := NewPodWithStoppedSidecar(t)
	maps.Copy(p.Config, more)
	p.makeStandalone()
	return p
}

// makeStandalone writes the current configuration to a file and makes the pod use it.
func (p *Pod) makeStandalone() {
	p.T.Helper()
	delete(p.Config, "data-dir") // a standalone wrapper derives it from --volume-dir
	p.WriteConfigFile()
	p.Flags = append(p.Flags, "--standalone", "--etcd-config-file="+p.configFile())
}

// WriteConfigFile writes Config to the file that a standalone pod reads.
func (p *Pod) WriteConfigFile() {
	p.T.Helper()
	text, err := yaml.Marshal(p.Config)
	require.NoError(p.T, err)
	require.NoError(p.T, os.WriteFile(p.configFile(), text, 0o600))
}

func (p *Pod) configFile() string { return filepath.Join(p.Dir, "etcd.yaml") }

// SingleMember returns a sidecar's configuration for a single member, including keys that etcd does not support.
func (p *Pod) SingleMember() map[string]any {
	client, peer := p.Endpoint(), p.PeerURL()
	return map[string]any{
		"name": "etcd-main-0", "data-dir": p.DataDir(), "metrics": "extensive",
		"advertise-client-urls": client, "listen-client-urls": client,
		"initial-advertise-peer-urls": peer, "listen-peer-urls": peer,
		"initial-cluster": "etcd-main-0=" + peer, "initial-cluster-state": "new", "initial-cluster-token": "etcd-cluster",
		"auto-compaction-mode": "periodic", "auto-compaction-retention": "30m",
		"quota-backend-bytes": int64(8589934592), "snapshot-count": 10000,
		"member-name-prefix": "etcd-main", "next-cluster-version-compatible": true,
	}
}

// WithoutQuorum configures a cluster of three members, two of which do not exist.
func (p *Pod) WithoutQuorum() {
	p.Config["initial-cluster"] = fmt.Sprintf("%s,etcd-main-1=http://127.0.0.1:%d,etcd-main-2=http://127.0.0.1:%d",
		p.Config["initial-cluster"], ports.Lease(p.T), ports.Lease(p.T))
}

// DataDir returns the path of etcd's data directory.
func (p *Pod) DataDir() string { return filepath.Join(p.Volume, "new.etcd") }

// DBPath returns the path of etcd's database file.
func (p *Pod) DBPath() string { return filepath.Join(p.DataDir(), "member", "snap", "db") }

// RecordPath returns the path of the exit record.
func (p *Pod) RecordPath() string { return filepath.Join(p.Volume, "exit_code") }

// StoredConfig returns the path of the copy of etcd's configuration that the program writes for debugging.
func (p *Pod) StoredConfig() string { return filepath.Join(p.Dir, "etcd.conf.yaml") }

// TerminationMessage returns the path of the termination message.
func (p *Pod) TerminationMessage() string { return filepath.Join(p.Dir, "termination-log") }

// PeerURL returns the peer URL of the member.
func (p *Pod) PeerURL() string {
	scheme := "http"
	if p.Config["peer-transport-security"] != nil {
		scheme = "https"
	}
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, p.PeerPort)
}

// Endpoint returns the URL at which clients can reach etcd.
func (p *Pod) Endpoint() string {
	return fmt.Sprintf("%s://127.0.0.1:%d", Scheme(p.Identity), p.ClientPort)
}

// Record returns the content of the exit record.
func (p *Pod) Record() string {
	content, err := os.ReadFile(p.RecordPath())
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// ExpectTerminationMessage creates the file for the termination message, as Kubernetes does.
func (p *Pod) ExpectTerminationMessage() {
	p.T.Helper()
	require.NoError(p.T, os.WriteFile(p.TerminationMessage(), nil, 0o600))
}

// WriteRecord writes an exit record as if another run had written it.
func (p *Pod) WriteRecord(content string) {
	p.T.Helper()
	require.NoError(p.T, os.WriteFile(p.RecordPath(), []byte(content), 0o600))
}

// RequireNoData requires that the volume does not contain etcd's data.
func (p *Pod) RequireNoData() {
	p.T.Helper()
	require.NoDirExists(p.T, filepath.Join(p.DataDir(), "member"))
}

// CorruptFile inverts part of a file but keeps its modification time, as silent disk corruption would.
func CorruptFile(t *testing.T, path string, from int64, size int) {
	t.Helper()
	before, err := os.Stat(path)
	require.NoError(t, err)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close() // a close error cannot affect the written content
	part := make([]byte, size)
	_, err = file.ReadAt(part, from)
	require.NoError(t, err)
	for i := range part {
		part[i] = ^part[i]
	}
	_, err = file.WriteAt(part, from)
	require.NoError(t, err)
	require.NoError(t, os.Chtimes(path, time.Time{}, before.ModTime()))
}

// BlockClose sends a request without its body. While etcd waits for the body, closing etcd takes up to 7 s. release
// closes the connection.
func (p *Pod) BlockClose() (release func()) {
	p.T.Helper()
	endpoint, err := url.Parse(p.Endpoint())
	require.NoError(p.T, err)
	connection, err := net.Dial("tcp", endpoint.Host)
	require.NoError(p.T, err)
	p.T.Cleanup(func() { _ = connection.Close() }) // release may have closed the connection
	_, err = io.WriteString(connection, "POST /v3/kv/range HTTP/1.1\r\nHost: etcd\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(p.T, err)
	// Once etcd has responded with 100 Continue, it waits for the body.
	require.NoError(p.T, connection.SetReadDeadline(time.Now().Add(Patience)))
	reply := make([]byte, len("HTTP/1.1 100 Continue"))
	_, err = io.ReadFull(connection, reply)
	require.NoError(p.T, err)
	require.Equal(p.T, "HTTP/1.1 100 Continue", string(reply))
	return func() { _ = connection.Close() }
}

// StartAndLockDB starts the program and locks the database while the sidecar is validating it, so that the start of
// etcd blocks until release is called.
func (p *Pod) StartAndLockDB(flags ...string) (run *Run, release func()) {
	p.T.Helper()
	p.Sidecar.Takes = Forever
	before := len(p.Sidecar.Requests(StartPath))
	run = p.Start(flags...)
	Eventually(p.T, "the validation starts", func() bool { return len(p.Sidecar.Requests(StartPath)) > before })
	release = LockFile(p.T, p.DBPath())
	p.Sidecar.Finish()
	p.Sidecar.Takes = 0 // subsequent validations are fast again
	return run, release
}

// LockFile locks a file as bbolt does, to simulate another process that has opened the database.
func LockFile(t *testing.T, path string) (release func()) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() }) // also releases the lock
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	return func() { require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_UN)) }
}

// Scheme returns the URL scheme for clients with this TLS configuration.
func Scheme(config *tls.Config) string {
	if config == nil {
		return "http"
	}
	return "https"
}

// EnableSidecarTLS makes the sidecar serve HTTPS, and makes the wrapper trust the sidecar's CA.
func (p *Pod) EnableSidecarTLS(a *certificates.Authority, bundle string) {
	p.Sidecar.tls = &tls.Config{Certificates: a.Issue("sidecar").Load(p.T), MinVersion: tls.VersionTLS12}
	p.Flags = append(p.Flags, "--backup-restore-tls-enabled=true", "--backup-restore-ca-cert-bundle-path="+bundle)
}

// RequireClientCerts makes etcd serve TLS and require client certificates, and issues certificates to the wrapper and
// to the test's clients.
func (p *Pod) RequireClientCerts(a *certificates.Authority) {
	server, client := a.Issue("etcd-main-local"), a.Issue("client")
	p.Trust = &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}
	p.Identity = p.Trust.Clone()
	p.Identity.Certificates = client.Load(p.T)
	p.Config["listen-client-urls"], p.Config["advertise-client-urls"] = p.Endpoint(), p.Endpoint()
	p.Config["client-transport-security"] = map[string]any{
		"cert-file": server.Cert, "key-file": server.Key, "client-cert-auth": true, "trusted-ca-file": a.Bundle(),
	}
	p.Flags = append(p.Flags, "--etcd-client-cert-path="+client.Cert, "--etcd-client-key-path="+client.Key,
		"--etcd-server-name=etcd-main-local", fmt.Sprintf("--etcd-client-port=%d", p.ClientPort))
}

// ServerCertName returns the common name in the certificate of the wrapper's own server.
func (p *Pod) ServerCertName() string {
	p.T.Helper()
	connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port), p.Trust)
	require.NoError(p.T, err)
	defer connection.Close() // nothing was sent, so a close error is harmless
	return connection.ConnectionState().PeerCertificates[0].Subject.CommonName
}
