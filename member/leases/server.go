package leases

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

// largest is how much of an answer is read; a lease has a few hundred bytes.
const largest = 1 << 20

// server is the API server as a service account reaches it. One goroutine at a time uses it.
type server struct {
	account Account
	client  *http.Client // nil until the CA's certificates could be read
}

// refusal is an answer that is none of the wanted ones.
type refusal struct {
	status int
	after  time.Duration // that the API server wants to be left alone for; 0 if it has not said
}

// Error implements error. It says what to do where that is known, and nothing of what the server has written.
func (r *refusal) Error() string {
	switch r.status {
	case http.StatusUnauthorized:
		return "the API server does not take the service account's token"
	case http.StatusForbidden:
		return "the service account's Role does not let it get and patch this lease"
	case http.StatusNotFound:
		return "there is no such lease in the pod's namespace: whoever deploys the member makes it"
	default:
		return fmt.Sprintf("the API server answers %d %s", r.status, http.StatusText(r.status))
	}
}

func isConflict(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusConflict
}

func (s *server) get(ctx context.Context, name string) (found object, err error) {
	return s.ask(ctx, http.MethodGet, name, nil)
}

// patch changes what change has, and nothing else of the lease.
func (s *server) patch(ctx context.Context, name string, change object) error {
	content, err := json.Marshal(change)
	if err == nil {
		_, err = s.ask(ctx, http.MethodPatch, name, content)
	}
	return err
}

func (s *server) ask(ctx context.Context, method, name string, content []byte) (found object, err error) {
	request, err := s.request(ctx, method, name, content)
	if err != nil {
		return found, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return found, withoutURL(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, largest))
	switch {
	case err != nil:
		return found, fmt.Errorf("the API server's answer broke off: %w", err)
	case response.StatusCode != http.StatusOK:
		return found, &refusal{response.StatusCode, retryAfter(response)}
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return found, fmt.Errorf("the API server's answer is no lease: %w", err)
	}
	return found, nil
}

func (s *server) request(ctx context.Context, method, name string, content []byte) (*http.Request, error) {
	if s.client == nil {
		transport, err := wire.NewTransport(wire.Options{CAPath: s.account.ca()})
		if err != nil {
			return nil, err
		}
		s.client = wire.NewClient(transport)
	}
	namespace, err := s.account.namespace()
	if err != nil {
		return nil, err
	}
	token, err := s.account.token()
	if err != nil {
		return nil, err
	}
	path := "https://" + s.account.Server + "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/leases/" + url.PathEscape(name)
	request, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
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
		return errSilent
	}
	return fmt.Errorf("the API server cannot be asked: %w", err)
}

// errSilent says that an answer takes too long.
var errSilent = fmt.Errorf("the API server has not answered within %s", answerWithin)

func retryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
