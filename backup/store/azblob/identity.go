package azblob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

const (
	resource = "https://storage.azure.com/"
	// early is the time before its expiry at which a token is replaced.
	early = 5 * time.Minute
)

func findSource(ctx context.Context) (oauth2.TokenSource, error) {
	return oauth2.ReuseTokenSourceWithExpiry(nil, identity{ctx}, early), nil
}

// identity fetches tokens: for the workload's identity from the file that Kubernetes renews, for a client secret, or from the
// machine's managed identity. Environment and file are read each time.
type identity struct {
	ctx context.Context // with the client
}

// Token implements oauth2.TokenSource.
func (i identity) Token() (*oauth2.Token, error) {
	form := url.Values{}
	secret := os.Getenv("AZURE_CLIENT_SECRET")
	if path := os.Getenv("AZURE_FEDERATED_TOKEN_FILE"); path != "" {
		assertion, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("AZURE_FEDERATED_TOKEN_FILE cannot be read: %w", errors.Join(err, store.ErrDenied))
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", strings.TrimSpace(string(assertion)))
		secret = ""
	}
	if secret == "" && len(form) == 0 {
		return i.managed()
	}
	host, err := wire.ParseEndpoint(cmp.Or(os.Getenv("AZURE_AUTHORITY_HOST"), "https://login.microsoftonline.com/"))
	tenant := os.Getenv("AZURE_TENANT_ID")
	if err != nil || tenant == "" {
		return nil, fmt.Errorf("AZURE_TENANT_ID or AZURE_AUTHORITY_HOST is missing or malformed: %w", store.ErrDenied)
	}
	login := clientcredentials.Config{
		ClientID: os.Getenv("AZURE_CLIENT_ID"), ClientSecret: secret, Scopes: []string{resource + ".default"}, EndpointParams: form,
		TokenURL: host.JoinPath(tenant, "oauth2/v2.0/token").String(), AuthStyle: oauth2.AuthStyleInParams,
	}
	return login.Token(i.ctx)
}

// managed fetches a token from the machine; AZURE_CLIENT_ID selects one of several identities.
func (i identity) managed() (*oauth2.Token, error) {
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {resource}}
	missing := "no credentials found in environment, workload identity or managed identity"
	if id := os.Getenv("AZURE_CLIENT_ID"); id != "" {
		query.Set("client_id", id)
		missing = ""
	}
	target := "http://169.254.169.254/metadata/identity/oauth2/token?" + query.Encode()
	request, err := http.NewRequestWithContext(i.ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Metadata", "true")
	return wire.MachineToken(request, missing)
}
