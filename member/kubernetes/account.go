package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// mountPoint is the directory of a pod's service account.
const mountPoint = "/var/run/secrets/kubernetes.io/serviceaccount"

// Account is the service account of a pod, and the address of the API server.
type Account struct {
	Dir    string // contains token, ca.crt and namespace, which Kubernetes may replace at any time
	Server string // of the API server, <host>:<port>
}

// FromEnvironment returns the account of the pod that this process runs in. It fails outside a pod.
func FromEnvironment() (Account, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Account{}, errors.New("only in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets there, are not set")
	}
	return Account{Dir: mountPoint, Server: net.JoinHostPort(host, port)}, nil
}

// ca returns the path of the CA bundle that verifies the API server.
func (a Account) ca() string { return filepath.Join(a.Dir, "ca.crt") }

// token reads the token for each request: Kubernetes replaces it long before it expires.
func (a Account) token() (string, error) { return a.read("token") }

// Namespace returns the pod's namespace.
func (a Account) Namespace() (string, error) { return a.read("namespace") }

func (a Account) read(name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(a.Dir, name))
	if err != nil {
		return "", fmt.Errorf("the pod has no service account to ask with (automountServiceAccountToken): %w", err)
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return "", fmt.Errorf("the service account's %s is empty", name)
	}
	return text, nil
}
