// Package cluster runs a Kubernetes control plane of real programs on loopback, with its data in an etcd of ours: what
// manifests are applied to in the tests of deploy. Whoever calls Start has built the programs with Build.
package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Patience is how long anything in a test may take before it counts as never.
const Patience = 3 * time.Minute

// token is whom the programs and the tests are known by: the one user, who may do everything.
const token = "test-deploy"

// Cluster is a control plane that runs.
type Cluster struct {
	Config     *rest.Config
	Client     kubernetes.Interface
	Kubeconfig string // for kubectl

	t   testing.TB
	dir string
}

// Start returns once the API server is ready. Everything ends with the test.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: t.TempDir()}
	endpoint := c.startEtcd()
	c.startServer(endpoint)
	c.startControllers()
	return c
}

// startEtcd lets the program under test keep what the API server knows.
func (c *Cluster) startEtcd() (endpoint string) {
	client, peer, own := freePort(c.t), freePort(c.t), freePort(c.t)
	config := filepath.Join(c.dir, "etcd.yaml")
	c.write(config, fmt.Sprintf(`name: kubernetes
listen-client-urls: http://127.0.0.1:%[1]d
advertise-client-urls: http://127.0.0.1:%[1]d
listen-peer-urls: http://127.0.0.1:%[2]d
initial-advertise-peer-urls: http://127.0.0.1:%[2]d
initial-cluster: kubernetes=http://127.0.0.1:%[2]d
unsafe-no-fsync: true
`, client, peer))
	volume := filepath.Join(c.dir, "etcd")
	require.NoError(c.t, os.Mkdir(volume, 0o700))
	c.begin("etcd-wrapper", Wrapper(), "start-etcd", "--standalone", "--etcd-config-file="+config, "--volume-dir="+volume,
		"--stored-config-path="+filepath.Join(c.dir, "stored.yaml"), fmt.Sprintf("--etcd-wrapper-port=%d", own))
	return fmt.Sprintf("http://127.0.0.1:%d", client)
}

func (c *Cluster) startServer(etcd string) {
	port := freePort(c.t)
	c.write(filepath.Join(c.dir, "tokens.csv"), token+",admin,admin,system:masters\n")
	c.writeKey(filepath.Join(c.dir, "accounts.key"))
	certificates := filepath.Join(c.dir, "apiserver")
	c.begin("kube-apiserver", Tool("kube-apiserver"), "--etcd-servers="+etcd, "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+certificates, "--token-auth-file="+filepath.Join(c.dir, "tokens.csv"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+filepath.Join(c.dir, "accounts.key"),
		"--service-account-signing-key-file="+filepath.Join(c.dir, "accounts.key"))
	c.Config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, QPS: 500, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // it makes its certificate as it starts
	}
	c.Client = kubernetes.NewForConfigOrDie(c.Config)
	c.writeKubeconfig()
	Eventually(c.t, "the API server is ready", func() error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(c.t.Context())
		return err
	})
}

// startControllers runs what turns a StatefulSet into pods and a PodDisruptionBudget into a number. What looks after
// nodes is left out: nothing here sends their heartbeats.
func (c *Cluster) startControllers() {
	c.begin("kube-controller-manager", Tool("kube-controller-manager"), "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", freePort(c.t)), "--cert-dir="+filepath.Join(c.dir, "controllers"), "--leader-elect=false",
		"--service-account-private-key-file="+filepath.Join(c.dir, "accounts.key"),
		"--root-ca-file="+filepath.Join(c.dir, "apiserver", "apiserver.crt"),
		"--controllers=statefulset-controller,disruption-controller,endpointslice-controller,serviceaccount-controller,"+
			"root-ca-certificate-publisher-controller,persistentvolumeclaim-protection-controller,persistentvolume-binder-controller,"+
			"garbage-collector-controller,namespace-controller")
	c.begin("kube-scheduler", Tool("kube-scheduler"), "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", freePort(c.t)), "--leader-elect=false")
}

// begin starts a program that ends with the test, or with the test's process.
func (c *Cluster) begin(name, program string, args ...string) {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	require.NoError(c.t, err)
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, command.Start())
	c.t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
		if c.t.Failed() {
			c.t.Logf("the end of the log of %s:\n%s", name, tail(log.Name()))
		}
	})
}

func tail(file string) string {
	content, _ := os.ReadFile(file) // what can't be read can't be shown
	lines := strings.Split(string(content), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

func (c *Cluster) write(path, content string) {
	require.NoError(c.t, os.WriteFile(path, []byte(content), 0o600))
}

func (c *Cluster) writeKey(path string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(c.t, err)
	c.write(path, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
}

func (c *Cluster) writeKubeconfig() {
	c.Kubeconfig = filepath.Join(c.dir, "kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"test": {Server: c.Config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*api.AuthInfo{"admin": {Token: token}},
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "admin"}},
		CurrentContext: "test",
	}, c.Kubeconfig))
}

// Kubectl runs it, and returns what it prints, also if it fails.
func (c *Cluster) Kubectl(args ...string) (string, error) {
	command := exec.Command(Tool("kubectl"), args...)
	command.Dir, command.Env = Checkout(), []string{"KUBECONFIG=" + c.Kubeconfig, "HOME=" + c.dir, "PATH=" + os.Getenv("PATH")}
	out, err := command.CombinedOutput()
	return string(out), err
}

// Eventually waits until try returns no error.
func Eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); <-time.After(100 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	require.NoError(t, err, "%s, within %s", what, Patience)
}

func freePort(t testing.TB) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
