package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"etcd-wrapper/backup/store"
)

// tokenDeadline limits the time to fetch a token, because no server may be listening on the machine's link-local
// address.
const tokenDeadline = 20 * time.Second

var errSlow = fmt.Errorf("cannot get an access token: %w", &store.Unavailable{Cause: fmt.Errorf("no response within %s", tokenDeadline)})

// Tokens authorizes requests with access tokens.
type Tokens struct {
	HTTP *http.Client // see IdentityClient
	// Find returns a token source that uses the client in the context. Find is called for the first request, after a
	// failure, and when File changes.
	Find func(ctx context.Context) (oauth2.TokenSource, error)
	File func() (path string) // path of the credentials file; may be nil

	mu     sync.Mutex
	caller context.Context    // context of the request that needs a token
	source oauth2.TokenSource // nil if unknown
	stamp  string             // state of the file when source was found
}

// Authorize adds a token to a request. Concurrent requests wait for the token.
func (t *Tokens) Authorize(request *http.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(request.Context(), tokenDeadline, errSlow)
	defer cancel()
	t.caller = ctx
	token, err := t.token()
	switch {
	case err == nil:
		token.SetAuthHeader(request)
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return translateTokenError(err)
	}
}

func (t *Tokens) token() (token *oauth2.Token, err error) {
	current := ""
	if t.File != nil {
		current = stampOf(t.File())
	}
	if t.source == nil || current != t.stamp {
		client := withoutRedirects(tokenTransport{t})
		if t.source, err = t.Find(context.WithValue(context.Background(), oauth2.HTTPClient, client)); err != nil {
			return nil, err
		}
		t.stamp = current
	}
	if token, err = t.source.Token(); err != nil {
		t.source = nil
	}
	return token, err
}

// Expire makes the next request look up credentials again if the status means that they were rejected.
func (t *Tokens) Expire(status int) {
	if status == http.StatusUnauthorized {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.source = nil
	}
}

// tokenTransport cancels fetching a token when the request that needs it is cancelled. Token sources themselves keep
// a single context forever.
type tokenTransport struct{ tokens *Tokens }

// RoundTrip implements http.RoundTripper. RoundTrip runs during Authorize.
func (t tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return t.tokens.HTTP.Transport.RoundTrip(request.WithContext(t.tokens.caller))
}

// translateTokenError translates an error without the server's text.
func translateTokenError(err error) error {
	var (
		refused *oauth2.RetrieveError
		ours    *store.Unavailable
	)
	switch {
	case errors.Is(err, store.ErrDenied):
		return err
	case errors.As(err, &refused) && refused.Response != nil:
		answer := summarize(refused.Response)
		if answer.status == http.StatusBadRequest || answer.status == http.StatusNotFound {
			answer.status = http.StatusUnauthorized // OAuth uses 400 for a rejected grant, and a machine without an account returns 404
		}
		return fmt.Errorf("cannot get an access token: %w", answer.toError(nil))
	case errors.As(err, &ours):
		return fmt.Errorf("cannot get an access token: %w", ours)
	default:
		return fmt.Errorf("cannot get an access token: %w", &store.Unavailable{})
	}
}

// MachineToken fetches a token for the machine's identity from the metadata server. If there is no metadata server,
// the error is ErrDenied with the text missing, unless missing is empty.
func MachineToken(request *http.Request, missing string) (*oauth2.Token, error) {
	response, err := oauth2.NewClient(request.Context(), nil).Do(request)
	if err != nil && missing != "" {
		return nil, fmt.Errorf("%s: %w", missing, store.ErrDenied)
	}
	if err != nil {
		return nil, err
	}
	defer Discard(response)
	if response.StatusCode != http.StatusOK {
		return nil, &oauth2.RetrieveError{Response: response}
	}
	var granted struct {
		Token   string      `json:"access_token"`
		Seconds json.Number `json:"expires_in"` // number, or string that contains a number
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(body, &granted) != nil || granted.Token == "" {
		return nil, &store.Unavailable{Cause: errors.New("the metadata server returned no token")}
	}
	seconds, _ := granted.Seconds.Int64() // zero makes each request fetch a new token
	return &oauth2.Token{AccessToken: granted.Token, Expiry: time.Now().Add(time.Duration(seconds) * time.Second)}, nil
}
