package gcs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/oauth2"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// machine returns tokens of the machine's account, or of the one that GKE assigns to a workload. The library checks only once whether
// there is a metadata server, and a pod may start before GKE's.
type machine struct {
	ctx context.Context // with the client
}

var errNone = fmt.Errorf("no Google credentials found: there is no key file, and no metadata server answers: %w", store.ErrDenied)

// Token implements oauth2.TokenSource.
func (m machine) Token() (*oauth2.Token, error) {
	host := cmp.Or(os.Getenv("GCE_METADATA_HOST"), "169.254.169.254")
	target := "http://" + host + "/computeMetadata/v1/instance/service-accounts/default/token?" + url.Values{"scopes": {scope}}.Encode()
	request, err := http.NewRequestWithContext(m.ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, fmt.Errorf("environment variable GCE_METADATA_HOST is not HOST[:PORT]: %w", store.ErrDenied)
	}
	request.Header.Set("Metadata-Flavor", "Google")
	response, err := oauth2.NewClient(m.ctx, nil).Do(request)
	if err != nil {
		return nil, errNone
	}
	defer wire.Discard(response)
	if response.StatusCode != http.StatusOK {
		return nil, &oauth2.RetrieveError{Response: response}
	}
	var granted oauth2.Token
	if err := decode(response.Body, &granted); err != nil || granted.AccessToken == "" {
		return nil, &store.Unavailable{Cause: errors.New("the metadata server's response contains none")}
	}
	granted.Expiry = time.Now().Add(time.Duration(granted.ExpiresIn) * time.Second)
	return &granted, nil
}
