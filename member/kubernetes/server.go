// Package kubernetes is what a member asks of the Kubernetes API server, and tells it, as the service account of its pod: how many members
// there are to be, the leases of the member and of its cluster's backups, and Events on its pod.
//
// It asks nothing of etcd, and nothing waits for the API server: each answer is given up after some seconds, and what goes wrong is logged
// and tried again, or given up.
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

// Patience is how long an answer may take: callers bound their contexts with it.
const Patience = 5 * time.Second

// largest is how much of an answer is read; what is asked for has some kilobytes.
const largest = 1 << 20

// Server is the API server as a service account reaches it. One goroutine at a time uses it.
type Server struct {
	account Account
	Client  *http.Client // nil until the CA's certificates could be read; a test gives its own
}

// NewServer returns the server of an account. It asks nothing yet.
func NewServer(account Account) *Server { return &Server{account: account} }

// Kind is a kind of object.
type Kind struct {
	Group  string // and version, as apps/v1
	Plural string // as paths have it
	Noun   string // as people say it
	Verbs  string // what the service account's Role has to let it do
}

// Refusal is an answer that is none of the wanted ones.
type Refusal struct {
	Status int
	After  time.Duration // that the API server wants to be left alone for; 0 if it has not said
	Kind   Kind
}

// Error implements error. It says what to do where that is known, and nothing of what the server has written.
func (r *Refusal) Error() string {
	switch r.Status {
	case http.StatusUnauthorized:
		return "the API server does not take the service account's token"
	case http.StatusForbidden:
		return fmt.Sprintf("the service account's Role does not let it %s this %s", r.Kind.Verbs, r.Kind.Noun)
	case http.StatusNotFound:
		return fmt.Sprintf("there is no such %s in the pod's namespace: whoever deploys the member makes it", r.Kind.Noun)
	default:
		return fmt.Sprintf("the API server answers %d %s", r.Status, http.StatusText(r.Status))
	}
}

// IsConflict tells whether somebody else has changed the object meanwhile.
func IsConflict(err error) bool {
	var refused *Refusal
	return errors.As(err, &refused) && refused.Status == http.StatusConflict
}

// Get reads an object of the pod's namespace into a value.
func (s *Server) Get(ctx context.Context, kind Kind, name string, into any) error {
	return s.ask(ctx, http.MethodGet, kind, name, nil, into)
}

// Patch changes what change has, and nothing else of the object.
func (s *Server) Patch(ctx context.Context, kind Kind, name string, change any) error {
	content, err := json.Marshal(change)
	if err != nil {
		return err
	}
	var ignored json.RawMessage
	return s.ask(ctx, http.MethodPatch, kind, name, content, &ignored)
}

// Create makes an object of the pod's namespace.
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
		transport, err := wire.NewTransport(wire.Options{CAPath: s.account.ca()})
		if err != nil {
			return nil, err
		}
		s.Client = wire.NewClient(transport)
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

// withoutURL leaves out of an error what is the same in all of them.
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

// ErrSilent says that an answer takes too long.
var ErrSilent = fmt.Errorf("the API server has not answered within %s", Patience)

func retryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
