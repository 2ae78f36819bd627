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
	"net/http"
	"net/url"
	"strconv"
	"time"

	"etcd-wrapper/backup/store/wire"
)

// Patience bounds the time for one response: callers set it on their contexts.
const Patience = 5 * time.Second

// largest bounds the bytes read of a response; expected responses have a few kilobytes.
const largest = 1 << 20

// Server is a client of the API server. It is used by one goroutine at a time.
type Server struct {
	account Account
	Client  *http.Client // nil until the CA bundle could be read; tests set their own
}

// NewServer returns a client for an account. It sends no request yet.
func NewServer(account Account) *Server { return &Server{account: account} }

// Kind describes a kind of object.
type Kind struct {
	Group  string // group and version, such as apps/v1
	Plural string // in paths
	Noun   string // in messages
	Verbs  string // verbs that the service account's Role must allow
}

// Refusal is the error for an unexpected HTTP status.
type Refusal struct {
	Status int
	After  time.Duration // of the header Retry-After; 0 if there is none
	Kind   Kind
}

// Error implements error. It names the remedy if that is known, and never quotes the server's response.
func (r *Refusal) Error() string {
	switch r.Status {
	case http.StatusUnauthorized:
		return "the API server does not take the service account's token"
	case http.StatusForbidden:
		return fmt.Sprintf("the service account's Role does not let it %s this %s", r.Kind.Verbs, r.Kind.Noun)
	case http.StatusNotFound:
		return fmt.Sprintf("there is no such %s in the pod's namespace: create it where the member is deployed", r.Kind.Noun)
	default:
		return fmt.Sprintf("the API server answers %d %s", r.Status, http.StatusText(r.Status))
	}
}

// IsConflict reports whether err means that the object was changed concurrently.
func IsConflict(err error) bool {
	var refused *Refusal
	return errors.As(err, &refused) && refused.Status == http.StatusConflict
}

// Get reads an object from the pod's namespace.
func (s *Server) Get(ctx context.Context, kind Kind, name string, into any) error {
	return s.ask(ctx, http.MethodGet, kind, name, nil, into)
}

// Patch applies a merge patch to an object.
func (s *Server) Patch(ctx context.Context, kind Kind, name string, change any) error {
	content, err := json.Marshal(change)
	if err != nil {
		return err
	}
	var ignored json.RawMessage
	return s.ask(ctx, http.MethodPatch, kind, name, content, &ignored)
}

// Create creates an object in the pod's namespace.
func (s *Server) Create(ctx context.Context, kind Kind, object any) error {
	content, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var ignored json.RawMessage
	return s.ask(ctx, http.MethodPost, kind, "", content, &ignored)
}

func (s *Server) ask(ctx context.Context, method string, kind Kind, name string, content []byte, into any) error {
	request, err := s.request(ctx, method, kind, name, content)
	if err != nil {
		return err
	}
	response, err := s.Client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, largest))
	switch {
	case err != nil:
		return fmt.Errorf("the API server's answer broke off: %w", err)
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated:
		return &Refusal{response.StatusCode, retryAfter(response), kind}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the API server's answer is no %s: %w", kind.Noun, err)
	}
	return nil
}

func (s *Server) request(ctx context.Context, method string, kind Kind, name string, content []byte) (*http.Request, error) {
	if s.Client == nil {
		client, err := wire.NewClient(wire.Options{CAPath: s.account.ca()})
		if err != nil {
			return nil, err
		}
		s.Client = client
	}
	namespace, err := s.account.Namespace()
	if err != nil {
		return nil, err
	}
	token, err := s.account.token()
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
	switch method {
	case http.MethodPatch:
		request.Header.Set("Content-Type", "application/merge-patch+json")
	case http.MethodPost:
		request.Header.Set("Content-Type", "application/json")
	}
	return request, nil
}

// withoutURL removes the URL from an error and replaces timeouts with ErrSilent.
func withoutURL(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		err = about.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrSilent
	}
	return fmt.Errorf("the API server cannot be asked: %w", err)
}

// ErrSilent is the error for a response that takes too long.
var ErrSilent = fmt.Errorf("the API server has not answered within %s", Patience)

func retryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
