// Package kubernetes talks to the Kubernetes API server with the service account of the member's pod. It reads how
// many members are wanted, renews the leases of the member and of its cluster's backups, and posts Events about its
// pod.
//
// It does not use etcd, and nothing waits for the API server: each request has a timeout of a few seconds, and
// failures are logged and retried or dropped.
package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/backup/store/wire"
)

// mountPoint is the directory of a pod's service account.
const mountPoint = "/var/run/secrets/kubernetes.io/serviceaccount"

// Account is the service account of a pod, and the address of the API server.
type Account struct {
	Dir    string // directory with token, ca.crt and namespace, which Kubernetes may replace at any time
	Server string // address of the API server, <host>:<port>
}

// NewAccount returns the account of the pod in which this process runs. It fails outside a pod.
func NewAccount() (Account, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Account{}, errors.New("only in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets there, are not set")
	}
	return Account{Dir: mountPoint, Server: net.JoinHostPort(host, port)}, nil
}

// read reads a file of the account. It must be called for each request, because Kubernetes replaces the token long
// before it expires.
func (a Account) read(name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(a.Dir, name))
	if err != nil {
		return "", fmt.Errorf("the pod has no service account token (automountServiceAccountToken): %w", err)
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return "", fmt.Errorf("the service account's %s is empty", name)
	}
	return text, nil
}

// Timeout bounds the time for one response. Callers set it on their contexts.
const Timeout = 5 * time.Second

// maxResponse bounds the number of response bytes to read; expected responses have a few kilobytes.
const maxResponse = 1 << 20

// Server is a client of the API server. It is safe for concurrent use.
type Server struct {
	account Account
	mu      sync.Mutex   // guards Client
	Client  *http.Client // nil until the CA bundle could be read; tests set their own
}

// NewServer returns a client for an account. It does not send a request.
func NewServer(account Account) *Server { return &Server{account: account} }

// Kind describes a kind of object.
type Kind struct {
	Group  string // group and version, such as apps/v1
	Plural string // in paths
	Noun   string // in messages
	Verbs  string // verbs that the service account's Role must allow
}

// StatusError is the error for an unexpected HTTP status.
type StatusError struct {
	Status int
	After  time.Duration // value of the Retry-After header; 0 if there is none
	Kind   Kind
}

// Error implements error. It contains the remedy if that is known, but never the server's response.
func (e *StatusError) Error() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "the API server rejects the service account's token"
	case http.StatusForbidden:
		return fmt.Sprintf("the service account's Role does not let it %s this %s", e.Kind.Verbs, e.Kind.Noun)
	case http.StatusNotFound:
		return fmt.Sprintf("there is no such %s in the pod's namespace: create it where the member is deployed", e.Kind.Noun)
	default:
		return fmt.Sprintf("the API server answers %d %s", e.Status, http.StatusText(e.Status))
	}
}

// Get reads an object from the pod's namespace.
func (s *Server) Get(ctx context.Context, kind Kind, name string, object any) error {
	return s.do(ctx, http.MethodGet, kind, name, nil, object)
}

// Patch applies a merge patch to an object.
func (s *Server) Patch(ctx context.Context, kind Kind, name string, change any) error {
	return s.do(ctx, http.MethodPatch, kind, name, change, &json.RawMessage{})
}

// Create creates an object in the pod's namespace.
func (s *Server) Create(ctx context.Context, kind Kind, object any) error {
	return s.do(ctx, http.MethodPost, kind, "", object, &json.RawMessage{})
}

func (s *Server) do(ctx context.Context, method string, kind Kind, name string, send, receive any) error {
	var content []byte
	if send != nil { // some servers and proxies reject a GET with a body
		var err error
		if content, err = json.Marshal(send); err != nil {
			return err
		}
	}
	request, err := s.newRequest(ctx, method, kind, name, content)
	if err != nil {
		return err
	}
	response, err := s.Client.Do(request)
	if err != nil {
		if err = wire.WithoutURL(err); errors.Is(err, context.DeadlineExceeded) {
			return errTimeout
		}
		return fmt.Errorf("the API server cannot be reached: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	switch {
	case err != nil:
		return fmt.Errorf("the API server's response broke off: %w", err)
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated:
		return &StatusError{response.StatusCode, wire.RetryAfter(response.Header.Get("Retry-After")), kind}
	}
	if err := json.Unmarshal(body, receive); err != nil {
		return fmt.Errorf("the API server's response is not a %s: %w", kind.Noun, err)
	}
	return nil
}

func (s *Server) newRequest(ctx context.Context, method string, kind Kind, name string, content []byte) (*http.Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Client == nil {
		client, err := wire.NewClient(filepath.Join(s.account.Dir, "ca.crt"))
		if err != nil {
			return nil, err
		}
		s.Client = client
	}
	namespace, err := s.account.read("namespace")
	if err != nil {
		return nil, err
	}
	token, err := s.account.read("token")
	if err != nil {
		return nil, err
	}
	path := "https://" + s.account.Server + "/apis/" + kind.Group + "/namespaces/" + url.PathEscape(namespace) + "/" + kind.Plural
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	request, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	return request, nil
}

var statefulSets = Kind{Group: "apps/v1", Plural: "statefulsets", Noun: "StatefulSet", Verbs: "get"}

// errTimeout is the error for a response that takes too long.
var errTimeout = fmt.Errorf("the API server has not answered within %s", Timeout)

// statefulSet contains the fields of a StatefulSet that determine its number of pods.
type statefulSet struct {
	Metadata struct {
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Replicas *int `json:"replicas"`
		Ordinals struct {
			Start int `json:"start"`
		} `json:"ordinals"`
	} `json:"spec"`
}

// Pod identifies a pod of a StatefulSet.
type Pod struct {
	Set     string
	Ordinal int
}

// ParsePod parses the name of a StatefulSet's pod, NAME-ORDINAL.
func ParsePod(name string) (Pod, error) {
	i := strings.LastIndexByte(name, '-')
	ordinal, err := strconv.ParseUint(name[i+1:], 10, 31)
	if err != nil || i <= 0 {
		return Pod{}, fmt.Errorf("%q is not the name of a StatefulSet's pod", name)
	}
	return Pod{name[:i], int(ordinal)}, nil
}

// IsScaledDown reports whether a StatefulSet was scaled down so that it no longer includes the pod. A StatefulSet
// that was deleted, or scaled to zero for hibernation, keeps its members.
func (s *Server) IsScaledDown(ctx context.Context, pod Pod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var set statefulSet
	if err := s.Get(ctx, statefulSets, pod.Set, &set); err != nil {
		return false, err
	}
	wanted := set.Spec.Replicas
	if wanted == nil || *wanted == 0 || set.Metadata.DeletionTimestamp != "" {
		return false, nil
	}
	return pod.Ordinal >= set.Spec.Ordinals.Start+*wanted, nil
}
