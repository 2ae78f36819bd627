// Package cluster runs a Kubernetes control plane of real programs on loopback, with its data in etcd-wrapper, for the
// tests of deploy. Build has to be called before Start.
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

// token identifies the programs and the tests: the one user, with all permissions.
const token = "test-deploy"

// Cluster is a control plane that runs.
type Cluster struct {
	Config     *rest.Config
	Client     kubernetes.Interface
	Kubeconfig string // for kubectl

	dir     string
	running []*exec.Cmd
}

// Start returns once the API server is ready. Everything is kept in a new folder below the system's for temporary files, until
// Stop.
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

// Stop ends the programs and removes their files. If logs is not nil it gets the end of each program's log.
func (c *Cluster) Stop(logs io.Writer) {
	for _, command := range c.running {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
		if logs != nil {
			_, _ = fmt.Fprintf(logs, "the end of the log of %s:\n%s\n", filepath.Base(command.Path), tail(c.log(command.Path)))
		}
	}
	_ = os.RemoveAll(c.dir) // leftovers are in the system's temporary folder
}

// startEtcd runs the program under test as the API server's etcd.
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
		c.begin(Wrapper(), "start-etcd", "--standalone", "--etcd-config-file="+config, "--volume-dir="+volume,
			"--stored-config-path="+filepath.Join(c.dir, "stored.yaml"), fmt.Sprintf("--etcd-wrapper-port=%d", own)))
}

func (c *Cluster) startServer(etcd, port int) error {
	tokens, accounts := filepath.Join(c.dir, "tokens.csv"), filepath.Join(c.dir, "accounts.key")
	c.Config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, QPS: 500, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // it makes its certificate as it starts
	}
	return errors.Join(
		c.write(tokens, token+",admin,admin,system:masters\n"), c.writeKey(accounts), c.writeKubeconfig(),
		c.begin(Tool("kube-apiserver"), fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcd), "--bind-address=127.0.0.1",
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
	return fmt.Errorf("the API server is not ready within %s: %w", Patience, err)
}

// controllers turn a StatefulSet or a CronJob into pods and a PodDisruptionBudget into a number, and delete pods whose
// node is gone. The controllers of nodes are left out: nothing sends their heartbeats. The names are those that
// Kubernetes had before 1.28, which every later one knows, too.
const controllers = "statefulset,job,cronjob,disruption,endpointslice,serviceaccount,root-ca-cert-publisher,pvc-protection," +
	"persistentvolume-binder,garbagecollector,namespace,podgc"

func (c *Cluster) startControllers(manager, scheduler int) error {
	return errors.Join(
		c.begin(Tool("kube-controller-manager"), "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", manager), "--cert-dir="+filepath.Join(c.dir, "controllers"), "--leader-elect=false",
			"--service-account-private-key-file="+filepath.Join(c.dir, "accounts.key"),
			"--root-ca-file="+filepath.Join(c.dir, "apiserver", "apiserver.crt"), "--controllers="+controllers),
		c.begin(Tool("kube-scheduler"), "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", scheduler), "--leader-elect=false"))
}

// begin starts a program, which runs until Stop.
func (c *Cluster) begin(program string, args ...string) error {
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
	content, _ := os.ReadFile(file) // an unreadable log cannot be shown
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

// Kubectl runs kubectl and returns its output, even if it fails.
func (c *Cluster) Kubectl(args ...string) (string, error) {
	return c.tool("kubectl", args...)
}

// Helm is Kubectl for charts.
func (c *Cluster) Helm(args ...string) (string, error) {
	return c.tool("helm", args...)
}

func (c *Cluster) tool(name string, args ...string) (string, error) {
	command := exec.Command(Tool(name), args...)
	command.Dir, command.Env = Checkout(), c.Environment()
	out, err := command.CombinedOutput()
	return string(out), err
}

// Environment returns the environment of a user of the cluster: kubectl and helm are in PATH and configured.
func (c *Cluster) Environment() []string {
	path := strings.Join([]string{filepath.Dir(Tool("kubectl")), filepath.Dir(Tool("helm")), os.Getenv("PATH")}, string(os.PathListSeparator))
	return append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "KUBECACHEDIR="+filepath.Join(c.dir, "cache"), "HELM_CACHE_HOME="+filepath.Join(c.dir, "helm"),
		"HELM_CONFIG_HOME="+filepath.Join(c.dir, "helm"), "HELM_DATA_HOME="+filepath.Join(c.dir, "helm"), "PATH="+path)
}

// freePorts returns different free ports.
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
