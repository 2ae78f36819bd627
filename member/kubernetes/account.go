package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// mountPoint is where Kubernetes mounts a pod's service account.
const mountPoint = "/var/run/secrets/kubernetes.io/serviceaccount"

// Account is a service account as a pod has it, and where the API server is.
type Account struct {
	Dir    string // with token, ca.crt and namespace in it, which Kubernetes may replace at any time
	Server string // the API server, <host>:<port>
}

// FromEnvironment is the account of the pod that this process runs in. The error says that it runs in none.
func FromEnvironment() (Account, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Account{}, errors.New("only in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets there, are not set")
	}
	return Account{Dir: mountPoint, Server: net.JoinHostPort(host, port)}, nil
}

// ca is the file with the certificates that the API server's is signed by.
func (a Account) ca() string { return filepath.Join(a.Dir, "ca.crt") }

// token is read anew for each request: Kubernetes replaces it long before it expires.
func (a Account) token() (string, error) { return a.read("token") }

// Namespace is the pod's.
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
