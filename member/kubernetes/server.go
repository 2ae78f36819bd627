// Package kubernetes is a client for the Kubernetes API server that uses the pod's service account. It checks whether
// the StatefulSet was scaled down, renews the member and backup leases, and posts Events about the pod.
//
// The package does not use etcd. A slow API server cannot block a member for long, because each request times out
// after a few seconds, and a failed request is either retried later or dropped.
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

// Account contains a pod's service account and the address of the API server.
type Account struct {
	Dir    string // directory that contains token, ca.crt and namespace; Kubernetes may replace these files at any time
	Server string // host:port of the API server
}

// NewAccount returns the service account of the pod in which this process is running, or an error outside a pod.
func NewAccount() (Account, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Account{}, errors.New("not running in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	return Account{Dir: mountPoint, Server: net.JoinHostPort(host, port)}, nil
}

// read reads one of the account's files. It must be called for each request, because Kubernetes rotates the token.
func (a Account) read(name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(a.Dir, name))
	if err != nil {
		return "", fmt.Errorf("cannot read the pod's service account (check automountServiceAccountToken): %w", err)
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return "", fmt.Errorf("the service account file %s is empty", name)
	}
	return text, nil
}

// Timeout is the timeout that callers must set on each request's context.
const Timeout = 5 * time.Second

// maxResponse is the maximum size of a response in bytes. Responses are normally a few kilobytes.
const maxResponse = 1 << 20

// Server is a client for the API server. It is safe for concurrent use.
type Server struct {
	account Account
	mu      sync.Mutex   // guards Client
	Client  *http.Client // nil until the CA bundle has been read; tests set their own
}

// NewServer returns a client that uses the given account. It does not send any requests.
func NewServer(account Account) *Server { return &Server{account: account} }

// Kind describes a kind of Kubernetes object.
type Kind struct {
	Group  string // group and version, such as apps/v1
	Plural string // name in URL paths
	Noun   string // name in messages
	Verbs  string // verbs that the service account's Role must allow
}

// StatusError is the error for an unexpected HTTP status.
type StatusError struct {
	Status int
	After  time.Duration // value of the Retry-After header; 0 if absent
	Kind   Kind
}

// Error implements error. The message suggests a remedy if there is one, but never includes the server's response.
func (e *StatusError) Error() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "the API server rejected the service account token"
	case http.StatusForbidden:
		return fmt.Sprintf("the service account's Role does not allow it to %s this %s", e.Kind.Verbs, e.Kind.Noun)
	case http.StatusNotFound:
		return fmt.Sprintf("the %s does not exist in the pod's namespace: create it there", e.Kind.Noun)
	default:
		return fmt.Sprintf("the API server returned %d %s", e.Status, http.StatusText(e.Status))
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
		return fmt.Errorf("cannot reach the API server: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the API server's response: %w", err)
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated:
		return &StatusError{response.StatusCode, wire.RetryAfter(response.Header.Get("Retry-After")), kind}
	}
	if err := json.Unmarshal(body, receive); err != nil {
		return fmt.Errorf("cannot decode the %s from the API server: %w", kind.Noun, err)
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

// errTimeout is returned if the API server does not respond in time.
var errTimeout = fmt.Errorf("the API server did not respond within %s", Timeout)

// statefulSet contains the fields of a StatefulSet that determine its pods.
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

// ParsePod parses the name of a StatefulSet pod: the name of the StatefulSet and an ordinal, joined by a hyphen.
func ParsePod(name string) (Pod, error) {
	i := strings.LastIndexByte(name, '-')
	ordinal, err := strconv.ParseUint(name[i+1:], 10, 31)
	if err != nil || i <= 0 {
		return Pod{}, fmt.Errorf("%q is not the name of a StatefulSet pod", name)
	}
	return Pod{name[:i], int(ordinal)}, nil
}

// IsScaledDown reports whether the StatefulSet has been scaled down such that it no longer includes the pod. If the
// StatefulSet is being deleted, or was scaled to zero for hibernation, IsScaledDown returns false, because the
// members must stay in the cluster.
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
