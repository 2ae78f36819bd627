package gcs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

const (
	scope = "https://www.googleapis.com/auth/devstorage.read_write"
	// tokenDeadline limits fetching a token: the link-local address of a machine may have no server.
	tokenDeadline = 20 * time.Second
)

var errSlow = fmt.Errorf("cannot get an access token: %w", &store.Unavailable{Cause: fmt.Errorf("the server returned none within %s", tokenDeadline)})

// tokens fetches access tokens from the sources of Google's own tools: a file, workload identity federation, the metadata server.
type tokens struct {
	ctx context.Context // contains the client for tokens; it never ends

	mu     sync.Mutex
	caller context.Context    // context of the request that waits for a token
	source oauth2.TokenSource // nil until found
	file   wire.Stamp         // of the file that the token came from
}

// newTokens does not search for credentials yet. Tokens come from other servers than the store, so its CA bundle does not apply.
func newTokens() (*tokens, error) {
	transport, err := wire.NewTransport(wire.Options{})
	if err != nil {
		return nil, err
	}
	t := &tokens{}
	client := wire.NewClient(tokenTransport{tokens: t, next: transport})
	t.ctx = context.WithValue(context.Background(), oauth2.HTTPClient, client)
	return t, nil
}

// tokenTransport ends the fetch of a token with the request that needs it: the library keeps one context forever.
type tokenTransport struct {
	tokens *tokens
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It is called by get.
func (f tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return f.next.RoundTrip(request.WithContext(f.tokens.caller))
}

func (t *tokens) authorize(request *http.Request) error {
	token, err := t.get(request.Context())
	if err != nil {
		return err
	}
	token.SetAuthHeader(request)
	return nil
}

// get returns a token. Other requests wait for it under the lock.
func (t *tokens) get(ctx context.Context) (*oauth2.Token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, tokenDeadline, errSlow)
	defer cancel()
	t.caller = ctx
	if stamp := wire.StampOf(keyFile()); t.source == nil || stamp != t.file {
		found, err := t.find()
		if err != nil {
			return nil, err
		}
		t.source, t.file = found, stamp
	}
	token, err := t.source.Token()
	if err != nil {
		t.source = nil
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, translateTokenError(err)
	}
	return token, nil
}

// find prefers a file to the machine's account.
func (t *tokens) find() (oauth2.TokenSource, error) {
	if _, err := os.Stat(keyFile()); err != nil && os.Getenv(keyFileVariable) == "" {
		return oauth2.ReuseTokenSource(nil, machine{t.ctx}), nil
	}
	found, err := google.FindDefaultCredentials(t.ctx, scope)
	if err != nil {
		return nil, fmt.Errorf("the file of Google credentials cannot be read or is invalid: %w", store.ErrDenied)
	}
	return found.TokenSource, nil
}

// translateTokenError translates an error and leaves out the server's text.
func translateTokenError(err error) error {
	var (
		refused *oauth2.RetrieveError
		ours    *store.Unavailable
	)
	switch {
	case errors.Is(err, store.ErrDenied):
		return err
	case errors.As(err, &refused) && refused.Response != nil:
		answer := wire.ResponseOf(refused.Response)
		if answer.Status == http.StatusBadRequest || answer.Status == http.StatusNotFound {
			answer.Status = http.StatusUnauthorized // OAuth returns 400 for a rejected grant, a machine without an account 404
		}
		return fmt.Errorf("cannot get an access token: %w", answer.Error(nil))
	case errors.As(err, &ours):
		return fmt.Errorf("cannot get an access token: %w", ours)
	default:
		return fmt.Errorf("cannot get an access token: %w", &store.Unavailable{})
	}
}

// forgetIfDenied makes the next request search for credentials again.
func (t *tokens) forgetIfDenied(response *http.Response) error {
	err := refusal(response)
	if errors.Is(err, store.ErrDenied) && response.StatusCode == http.StatusUnauthorized {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.source = nil
	}
	return err
}

const keyFileVariable = "GOOGLE_APPLICATION_CREDENTIALS"

func keyFile() string {
	if path := os.Getenv(keyFileVariable); path != "" {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "gcloud", "application_default_credentials.json")
}
