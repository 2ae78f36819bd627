package azblob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

const (
	resource = "https://storage.azure.com/"
	// early is the time before its expiry at which a token is replaced.
	early = 5 * time.Minute
	// tokenDeadline limits fetching a token: the link-local address of managed identity may have no server.
	tokenDeadline = 20 * time.Second
)

// tokens fetches access tokens: for the workload's identity from the file that Kubernetes renews, for a client secret, or from the
// machine's managed identity. Environment and file are read each time.
type tokens struct {
	client *http.Client

	mu    sync.Mutex
	token string
	until time.Time
}

// newTokens does not search for credentials yet. Tokens come from other servers than the store, so its CA bundle does not apply.
func newTokens() (*tokens, error) {
	transport, err := wire.NewTransport(wire.Options{})
	if err != nil {
		return nil, err
	}
	return &tokens{client: wire.NewClient(transport)}, nil
}

func (t *tokens) authorize(request *http.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now().Before(t.until) {
		if err := t.renew(request.Context()); err != nil {
			return err
		}
	}
	request.Header.Set("Authorization", "Bearer "+t.token)
	return nil
}

// forgetIfDenied makes the next request fetch a new token.
func (t *tokens) forgetIfDenied(response *http.Response) error {
	if response.StatusCode == http.StatusUnauthorized {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.until = time.Time{}
	}
	return refusal(response)
}

func (t *tokens) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tokenDeadline)
	defer cancel()
	source, err := tokenRequest(ctx)
	if err != nil {
		return err
	}
	response, err := t.client.Do(source)
	var wrapped *url.Error
	switch {
	case errors.As(err, &wrapped) && os.Getenv("AZURE_CLIENT_ID") == "":
		return fmt.Errorf("no credentials found in environment, workload identity or managed identity: %w", store.ErrDenied)
	case errors.As(err, &wrapped):
		return fmt.Errorf("cannot get an access token: %w", &store.Unavailable{Cause: wrapped.Err})
	case err != nil:
		return err
	}
	defer response.Body.Close()
	return t.keep(response)
}

// tokenRequest builds the request for a token from the environment.
func tokenRequest(ctx context.Context) (*http.Request, error) {
	form := url.Values{
		"grant_type": {"client_credentials"}, "scope": {resource + ".default"}, "client_id": {os.Getenv("AZURE_CLIENT_ID")},
	}
	if path := os.Getenv("AZURE_FEDERATED_TOKEN_FILE"); path != "" {
		assertion, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("AZURE_FEDERATED_TOKEN_FILE cannot be read: %w", errors.Join(err, store.ErrDenied))
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", strings.TrimSpace(string(assertion)))
		return loginRequest(ctx, form)
	}
	if secret := os.Getenv("AZURE_CLIENT_SECRET"); secret != "" {
		form.Set("client_secret", secret)
		return loginRequest(ctx, form)
	}
	return managedRequest(ctx)
}

func loginRequest(ctx context.Context, form url.Values) (*http.Request, error) {
	authority := os.Getenv("AZURE_AUTHORITY_HOST")
	if authority == "" {
		authority = "https://login.microsoftonline.com/"
	}
	host, err := wire.ParseEndpoint(authority)
	tenant := os.Getenv("AZURE_TENANT_ID")
	if err != nil || tenant == "" {
		return nil, fmt.Errorf("AZURE_TENANT_ID or AZURE_AUTHORITY_HOST is missing or malformed: %w", store.ErrDenied)
	}
	target := host.JoinPath(tenant, "oauth2/v2.0/token").String()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(form.Encode()))
	if err == nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return request, err
}

// managedRequest builds the request to the machine; AZURE_CLIENT_ID selects one of several identities.
func managedRequest(ctx context.Context) (*http.Request, error) {
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {resource}}
	if id := os.Getenv("AZURE_CLIENT_ID"); id != "" {
		query.Set("client_id", id)
	}
	target := "http://169.254.169.254/metadata/identity/oauth2/token?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err == nil {
		request.Header.Set("Metadata", "true")
	}
	return request, err
}

func (t *tokens) keep(response *http.Response) error {
	answer := wire.ResponseOf(response)
	if answer.Status == http.StatusBadRequest {
		answer.Status = http.StatusUnauthorized // OAuth returns 400 for a rejected grant
	}
	if answer.Status != http.StatusOK {
		return fmt.Errorf("cannot get an access token: %w", answer.Error(nil))
	}
	var granted struct {
		Token   string      `json:"access_token"`
		Seconds json.Number `json:"expires_in"` // a number, or a string of one
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return err
	}
	if json.Unmarshal(text, &granted) != nil || granted.Token == "" {
		return fmt.Errorf("cannot get an access token: %w", &store.Unavailable{Cause: errors.New("the response contains none")})
	}
	seconds, _ := granted.Seconds.Int64() // zero means a new token for each request
	t.token, t.until = granted.Token, now().Add(time.Duration(seconds)*time.Second-early)
	return nil
}
