// Package azblob keeps objects in Azure Blob Storage, over its REST interface.
package azblob

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// version of the protocol: old enough for every server, new enough for tokens and large blocks
const version = "2021-12-02"

var (
	containerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9]|-[a-z0-9]){2,62}$`)
	accountName   = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
)

// Store is a container or a prefix in it.
type Store struct {
	wire.Bucket
	container *url.URL
}

// New checks the place and returns an error about what is wrong. It contacts nothing. The endpoint is the account's, with a path for
// an emulator. An empty account stands for AZURE_STORAGE_ACCOUNT.
func New(place wire.Place, account string) (*Store, error) {
	if !containerName.MatchString(place.Bucket) {
		return nil, fmt.Errorf("%q is not the name of a container", place.Bucket)
	}
	account = cmp.Or(account, os.Getenv("AZURE_STORAGE_ACCOUNT"))
	if !accountName.MatchString(account) {
		return nil, fmt.Errorf("account %q is not the name of a storage account; account= or AZURE_STORAGE_ACCOUNT gives it", account)
	}
	client, err := wire.NewClient(place.CAPath)
	if err != nil {
		return nil, err
	}
	if place.Endpoint == nil {
		place.Endpoint = &url.URL{Scheme: "https", Host: account + ".blob.core.windows.net"}
	}
	s := &Store{container: place.Endpoint.JoinPath(place.Bucket)}
	s.Bucket = wire.Bucket{
		Name: "azblob://" + place.Bucket + "/" + place.Prefix, Prefix: place.Prefix, URL: s.url,
		Deleted: []int{http.StatusAccepted}, Page: s.page, Upload: s.upload,
		Client: wire.Client{
			HTTP: client, Header: map[string]string{"X-Ms-Version": version}, Unmarshal: xml.Unmarshal, Reason: reason, Codes: codes,
		},
	}
	return s, authorizeWith(&s.Client, account)
}

func (s *Store) url(key string) string {
	target := *s.container
	if key != "" { // JoinPath would drop a part of the prefix that is two dots
		escaped := strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
		target.Path, target.RawPath = target.Path+"/"+key, target.EscapedPath()+"/"+escaped
	}
	return target.String()
}

// page ignores after: Azure cannot start a listing after a name.
func (s *Store) page(ctx context.Context, prefix, _, mark string) (objects []store.Object, next string, err error) {
	var page struct {
		XMLName xml.Name `xml:"EnumerationResults"` // any other document would look like an empty listing
		Next    string   `xml:"NextMarker"`
		Blobs   []struct {
			Name     string   `xml:"Name"`
			Size     int64    `xml:"Properties>Content-Length"`
			Modified httpTime `xml:"Properties>Last-Modified"`
		} `xml:"Blobs>Blob"`
	}
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {"5000"}}
	if mark != "" {
		query.Set("marker", mark)
	}
	if _, err := s.Send(ctx, wire.Request{Method: http.MethodGet, URL: s.url(""), Query: query}, &page, http.StatusOK); err != nil {
		return nil, "", err
	}
	for _, blob := range page.Blobs {
		objects = append(objects, store.Object{Name: blob.Name, Size: blob.Size, Modified: blob.Modified.Time})
	}
	return objects, page.Next, nil
}

// httpTime is a time in the format of HTTP headers.
type httpTime struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *httpTime) UnmarshalText(text []byte) (err error) {
	t.Time, err = http.ParseTime(string(text))
	return err
}

// codes translates Azure's error codes.
var codes = map[string]error{
	"BlobAlreadyExists":                 store.ErrExists,
	"UnauthorizedBlobOverwrite":         store.ErrExists, // what Azure returns for an existing blob without the right to overwrite
	"ConditionNotMet":                   store.ErrExists,
	"BlobNotFound":                      store.ErrNotFound,
	"ContainerNotFound":                 store.ErrNoBucket,
	"ContainerBeingDeleted":             store.ErrNoBucket,
	"ContainerDisabled":                 store.ErrNoBucket,
	"BlobImmutableDueToPolicy":          store.ErrLocked,
	"BlobImmutableDueToLegalHold":       store.ErrLocked,
	"LeaseIdMissing":                    store.ErrLocked,
	"SnapshotsPresent":                  store.ErrLocked,
	"InvalidBlockList":                  store.ErrUnavailable, // another upload of this name was completed and took our blocks
	"Md5Mismatch":                       store.ErrUnavailable, // damaged in transit
	"OperationTimedOut":                 store.ErrUnavailable,
	"ServerBusy":                        store.ErrUnavailable,
	"AccountBeingCreated":               store.ErrUnavailable,
	"InsufficientAccountPermissions":    store.ErrDenied,
	"InvalidAuthenticationInfo":         store.ErrDenied,
	"AuthorizationPermissionMismatch":   store.ErrDenied,
	"AuthorizationResourceTypeMismatch": store.ErrDenied,
}

func reason(_ int, header http.Header, _ []byte) string { return header.Get("X-Ms-Error-Code") }
