// Package cluster runs a real Kubernetes control plane on loopback for the deployment tests. The control plane uses
// etcd-wrapper as its etcd. Build must be called before Start.
package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// token authenticates all programs and tests as the same user, who has all permissions.
const token = "test-deploy"

// Cluster is a running Kubernetes control plane.
type Cluster struct {
	Config     *rest.Config
	Client     kubernetes.Interface
	Kubeconfig string // path of the credentials file for kubectl and helm

	dir     string
	running []*exec.Cmd
}

// Start starts a control plane and waits until the API server is ready. All its files are in a temporary directory
// that Stop removes.
func Start(ctx context.Context) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "control-plane-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err = c.start(ctx); err != nil {
		c.Stop(os.Stderr)
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	ports, err := freePorts(6)
	if err != nil {
		return err
	}
	if err := c.startEtcd(ports[0], ports[1], ports[2]); err != nil {
		return err
	}
	if err := c.startServer(ports[0], ports[3]); err != nil {
		return err
	}
	if err := c.awaitServer(ctx); err != nil {
		return err
	}
	return c.startControllers(ports[4], ports[5])
}

// Stop stops the programs and removes their files. If logs is not nil, Stop writes the last lines of each program's
// log to it.
func (c *Cluster) Stop(logs io.Writer) {
	for _, command := range c.running {
		_ = command.Process.Kill() // the process may have exited already
		_ = command.Wait()
		if logs != nil {
			_, _ = fmt.Fprintf(logs, "last lines of the log of %s:\n%s\n", filepath.Base(command.Path), tail(c.log(command.Path)))
		}
	}
	_ = os.RemoveAll(c.dir) // if it cannot be removed, it stays in the system's temporary directory
}

// startEtcd starts the program under test as the API server's etcd.
func (c *Cluster) startEtcd(client, peer, own int) error {
	config, volume := filepath.Join(c.dir, "etcd.yaml"), filepath.Join(c.dir, "etcd")
	return errors.Join(os.Mkdir(volume, 0o700), c.write(config, fmt.Sprintf(`name: kubernetes
listen-client-urls: http://127.0.0.1:%[1]d
advertise-client-urls: http://127.0.0.1:%[1]d
listen-peer-urls: http://127.0.0.1:%[2]d
initial-advertise-peer-urls: http://127.0.0.1:%[2]d
initial-cluster: kubernetes=http://127.0.0.1:%[2]d
unsafe-no-fsync: true
`, client, peer)),
		c.startProgram(Wrapper(), "start-etcd", "--standalone", "--etcd-config-file="+config, "--volume-dir="+volume,
			"--stored-config-path="+filepath.Join(c.dir, "stored.yaml"), fmt.Sprintf("--etcd-wrapper-port=%d", own)))
}

func (c *Cluster) startServer(etcd, port int) error {
	tokens, accounts := filepath.Join(c.dir, "tokens.csv"), filepath.Join(c.dir, "accounts.key")
	c.Config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, QPS: 500, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // kube-apiserver creates a self-signed certificate at startup
	}
	return errors.Join(
		c.write(tokens, token+",admin,admin,system:masters\n"), c.writeKey(accounts), c.writeKubeconfig(),
		c.startProgram(Tool("kube-apiserver"), fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcd), "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+filepath.Join(c.dir, "apiserver"), "--token-auth-file="+tokens,
			"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+accounts,
			"--service-account-signing-key-file="+accounts))
}

func (c *Cluster) awaitServer(ctx context.Context) (err error) {
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline) && ctx.Err() == nil; <-time.After(100 * time.Millisecond) {
		if _, err = c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the API server did not become ready within %s: %w", Patience, err)
}

// controllers lists the controllers that the tests need. The node controllers are omitted, because no node sends
// heartbeats here. The names predate Kubernetes 1.28, but newer versions still accept them.
const controllers = "statefulset,job,cronjob,disruption,endpointslice,serviceaccount,root-ca-cert-publisher,pvc-protection," +
	"persistentvolume-binder,garbagecollector,namespace,podgc"

func (c *Cluster) startControllers(manager, scheduler int) error {
	return errors.Join(
		c.startProgram(Tool("kube-controller-manager"), "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", manager), "--cert-dir="+filepath.Join(c.dir, "controllers"), "--leader-elect=false",
			"--service-account-private-key-file="+filepath.Join(c.dir, "accounts.key"),
			"--root-ca-file="+filepath.Join(c.dir, "apiserver", "apiserver.crt"), "--controllers="+controllers),
		c.startProgram(Tool("kube-scheduler"), "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", scheduler), "--leader-elect=false"))
}

// startProgram starts a program that runs until Stop is called.
func (c *Cluster) startProgram(program string, args ...string) error {
	log, err := os.Create(c.log(program))
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		return err
	}
	c.running = append(c.running, command)
	return nil
}

func (c *Cluster) log(program string) string {
	return filepath.Join(c.dir, filepath.Base(program)+".log")
}

func tail(file string) string {
	content, _ := os.ReadFile(file) // if the log cannot be read, no lines are printed
	lines := strings.Split(string(content), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

func (c *Cluster) write(path, content string) error {
	return os.WriteFile(path, []byte(content), 0o600)
}

func (c *Cluster) writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return c.write(path, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
}

func (c *Cluster) writeKubeconfig() error {
	c.Kubeconfig = filepath.Join(c.dir, "kubeconfig")
	return clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"test": {Server: c.Config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*api.AuthInfo{"admin": {Token: token}},
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "admin"}},
		CurrentContext: "test",
	}, c.Kubeconfig)
}

// Kubectl runs kubectl and returns its output, even if kubectl fails.
func (c *Cluster) Kubectl(args ...string) (string, error) {
	return c.tool("kubectl", args...)
}

// Helm runs helm and returns its output, even if helm fails.
func (c *Cluster) Helm(args ...string) (string, error) {
	return c.tool("helm", args...)
}

func (c *Cluster) tool(name string, args ...string) (string, error) {
	command := exec.Command(Tool(name), args...)
	command.Dir, command.Env = Checkout(), c.Environment()
	out, err := command.CombinedOutput()
	return string(out), err
}

// Environment returns the environment of a cluster user, with kubectl and helm in PATH and configured for the
// cluster.
func (c *Cluster) Environment() []string {
	path := strings.Join([]string{filepath.Dir(Tool("kubectl")), filepath.Dir(Tool("helm")), os.Getenv("PATH")}, string(os.PathListSeparator))
	return append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "KUBECACHEDIR="+filepath.Join(c.dir, "cache"), "HELM_CACHE_HOME="+filepath.Join(c.dir, "helm"),
		"HELM_CONFIG_HOME="+filepath.Join(c.dir, "helm"), "HELM_DATA_HOME="+filepath.Join(c.dir, "helm"), "PATH="+path)
}

// freePorts returns distinct free ports.
func freePorts(count int) (ports []int, err error) {
	for range count {
		listener, listening := net.Listen("tcp", "127.0.0.1:0")
		if listening != nil {
			return nil, listening
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
