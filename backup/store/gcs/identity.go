package gcs

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

const (
	scope           = "https://www.googleapis.com/auth/devstorage.read_write"
	keyFileVariable = "GOOGLE_APPLICATION_CREDENTIALS"
)

// newTokens takes tokens from the sources of Google's own tools: a file, workload identity federation, the metadata server.
func newTokens() *wire.Tokens {
	return &wire.Tokens{HTTP: wire.IdentityClient(), Find: findSource, File: keyFile}
}

// findSource prefers a file to the machine's account.
func findSource(ctx context.Context) (oauth2.TokenSource, error) {
	if _, err := os.Stat(keyFile()); err != nil && os.Getenv(keyFileVariable) == "" {
		return oauth2.ReuseTokenSource(nil, machine{ctx}), nil
	}
	found, err := google.FindDefaultCredentials(ctx, scope)
	if err != nil {
		return nil, fmt.Errorf("the file of Google credentials cannot be read or is invalid: %w", store.ErrDenied)
	}
	return found.TokenSource, nil
}

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

// machine returns tokens of the machine's account, or of the one that GKE assigns to a workload. The library checks only once whether
// there is a metadata server, and a pod may start before GKE's.
type machine struct {
	ctx context.Context // with the client
}

// Token implements oauth2.TokenSource.
func (m machine) Token() (*oauth2.Token, error) {
	host := cmp.Or(os.Getenv("GCE_METADATA_HOST"), "169.254.169.254")
	target := "http://" + host + "/computeMetadata/v1/instance/service-accounts/default/token?" + url.Values{"scopes": {scope}}.Encode()
	request, err := http.NewRequestWithContext(m.ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, fmt.Errorf("environment variable GCE_METADATA_HOST is not HOST[:PORT]: %w", store.ErrDenied)
	}
	request.Header.Set("Metadata-Flavor", "Google")
	return wire.MachineToken(request, "no Google credentials found: there is no key file, and no metadata server answers")
}
