// Package gcs stores objects in Google Cloud Storage using the JSON API.
package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// googleapis is the default endpoint.
const googleapis = "https://storage.googleapis.com"

// bucketName matches bucket names: 3 to 63 letters, digits, hyphens, underscores and dots. Names with dots may be
// longer.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]+[a-z0-9]$`)

// longestBucketName is the maximum length of a bucket name. Compiling the limit as part of the expression would delay
// each start by half a millisecond.
const longestBucketName = 222

// Store is a bucket, or a prefix in a bucket.
type Store struct {
	wire.Bucket
	objects string // URL of the bucket's objects, without a trailing slash
	uploads string // URL for creating objects
}

// New validates the location without connecting. A plain HTTP endpoint is assumed to be an emulator and is not sent
// any credentials.
func New(place wire.Place) (*Store, error) {
	if len(place.Bucket) > longestBucketName || !bucketName.MatchString(place.Bucket) {
		return nil, fmt.Errorf("invalid bucket name %q", place.Bucket)
	}
	client, err := wire.NewClient(place.CAPath)
	if err != nil {
		return nil, err
	}
	endpoint, path := googleapis, "/storage/v1/b/"+url.PathEscape(place.Bucket)+"/o"
	if place.Endpoint != nil {
		endpoint = strings.TrimSuffix(place.Endpoint.String(), "/")
	}
	s := &Store{objects: endpoint + path, uploads: endpoint + "/upload" + path}
	s.Bucket = wire.Bucket{
		Name: "gs://" + place.Bucket + "/" + place.Prefix, Prefix: place.Prefix, URL: s.url, Media: url.Values{"alt": {"media"}},
		Deleted: []int{http.StatusOK, http.StatusNoContent}, Page: s.page, Upload: s.upload,
		Client: wire.Client{HTTP: client, Authorize: anonymous, Unmarshal: json.Unmarshal, Reason: reason, Codes: codes},
	}
	if strings.HasPrefix(endpoint, "https:") {
		tokens := newTokens()
		s.Authorize, s.Expire = tokens.Authorize, tokens.Expire
	}
	return s, nil
}

func anonymous(*http.Request) error { return nil }

func (s *Store) url(key string) string {
	if key == "" {
		return s.objects
	}
	return s.objects + "/" + url.PathEscape(key)
}

func (s *Store) page(ctx context.Context, prefix, after, mark string) (objects []store.Object, next string, err error) {
	var page struct {
		Kind  string `json:"kind"`
		Next  string `json:"nextPageToken"`
		Items []struct {
			Name    string    `json:"name"`
			Size    int64     `json:"size,string"`
			Created time.Time `json:"timeCreated"`
		} `json:"items"`
	}
	query := url.Values{"prefix": {prefix}, "maxResults": {"1000"}, "fields": {"kind,nextPageToken,items(name,size,timeCreated)"}}
	if after != "" {
		query.Set("startOffset", after)
	}
	if mark != "" {
		query.Set("pageToken", mark)
	}
	request := wire.Request{Method: http.MethodGet, URL: s.objects, Query: query}
	if _, err := s.Send(ctx, request, &page, http.StatusOK); err != nil {
		return nil, "", err
	}
	if page.Kind != "storage#objects" { // any other document would look like an empty listing
		return nil, "", wire.ErrUnexpectedResponse("a listing")
	}
	for _, item := range page.Items {
		objects = append(objects, store.Object{Name: item.Name, Size: item.Size, Modified: item.Created})
	}
	return objects, page.Next, nil
}

const (
	missing = "notFound" // missing object, bucket or upload
	exists  = "conditionNotMet"
	held    = "objectHeld"
)

// codes maps Google's error reasons to errors.
var codes = map[string]error{
	exists:                  store.ErrExists,
	missing:                 wire.ErrUnconfirmed,
	"retentionPolicyNotMet": store.ErrLocked,
	held:                    store.ErrLocked,
	"rateLimitExceeded":     store.ErrUnavailable,
	"userRateLimitExceeded": store.ErrUnavailable,
	"backendError":          store.ErrUnavailable,
}

// reason prefers the status to the body, which an emulator may omit.
func reason(status int, _ http.Header, body []byte) string {
	var refused struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &refused) // the status is sufficient
	message := strings.ToLower(refused.Error.Message)
	switch {
	case status == http.StatusForbidden && (strings.Contains(message, "retention") || strings.Contains(message, " hold")):
		return held // some holds appear only in the message
	case status == http.StatusNotFound || status == http.StatusGone:
		return missing
	case status == http.StatusPreconditionFailed:
		return exists
	case len(refused.Error.Errors) > 0:
		return refused.Error.Errors[0].Reason
	default:
		return ""
	}
}

const (
	scope           = "https://www.googleapis.com/auth/devstorage.read_write"
	keyFileVariable = "GOOGLE_APPLICATION_CREDENTIALS"
)

// newTokens gets tokens from the same sources as Google's own tools: a file, workload identity federation, or the
// metadata server.
func newTokens() *wire.Tokens {
	return &wire.Tokens{HTTP: wire.IdentityClient(), Find: findSource, File: keyFile}
}

// findSource prefers a credentials file to the machine's account.
func findSource(ctx context.Context) (oauth2.TokenSource, error) {
	if _, err := os.Stat(keyFile()); err != nil && os.Getenv(keyFileVariable) == "" {
		return oauth2.ReuseTokenSource(nil, machine{ctx}), nil
	}
	found, err := google.FindDefaultCredentials(ctx, scope)
	if err != nil {
		return nil, fmt.Errorf("the Google credentials file is unreadable or invalid: %w", store.ErrDenied)
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

// machine returns tokens for the machine's account, or for the account that GKE assigns to the workload. The library
// is not used, because it looks for a metadata server only once, and a pod may start before GKE's metadata server.
type machine struct {
	ctx context.Context // contains the HTTP client
}

// Token implements oauth2.TokenSource.
func (m machine) Token() (*oauth2.Token, error) {
	host := cmp.Or(os.Getenv("GCE_METADATA_HOST"), "169.254.169.254")
	target := "http://" + host + "/computeMetadata/v1/instance/service-accounts/default/token?" + url.Values{"scopes": {scope}}.Encode()
	request, err := http.NewRequestWithContext(m.ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, fmt.Errorf("GCE_METADATA_HOST must be HOST[:PORT]: %w", store.ErrDenied)
	}
	request.Header.Set("Metadata-Flavor", "Google")
	return wire.MachineToken(request, "no Google credentials found: no key file exists and the metadata server does not respond")
}
