// Package azblob keeps objects in Azure Blob Storage, over its REST interface.
package azblob

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"iter"
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

// Options locate a store.
type Options struct {
	Container string
	Prefix    string   // prefix of all names: empty, or ending with a slash
	Account   string   // empty: AZURE_STORAGE_ACCOUNT
	Endpoint  *url.URL // of the account, with a path for an emulator; nil: https://ACCOUNT.blob.core.windows.net
	Wire      wire.Options
}

// Store is a container or a prefix in it.
type Store struct {
	container, prefix string
	endpoint          *url.URL // without a trailing slash
	client            *wire.Client
}

// New checks the options and returns an error about the wrong one. It contacts nothing.
func New(options Options) (*Store, error) {
	if !containerName.MatchString(options.Container) {
		return nil, fmt.Errorf("%q is not the name of a container", options.Container)
	}
	account := options.Account
	if account == "" {
		account = os.Getenv("AZURE_STORAGE_ACCOUNT")
	}
	if !accountName.MatchString(account) {
		return nil, fmt.Errorf("account %q is not the name of a storage account; account= or AZURE_STORAGE_ACCOUNT gives it", account)
	}
	transport, err := wire.NewTransport(options.Wire)
	if err != nil {
		return nil, err
	}
	client := &wire.Client{HTTP: wire.NewClient(transport), Refusal: refusal}
	if err := authorizeWith(client, account); err != nil {
		return nil, err
	}
	endpoint := endpointOf(options.Endpoint, account)
	return &Store{container: options.Container, prefix: options.Prefix, endpoint: endpoint, client: client}, nil
}

func endpointOf(given *url.URL, account string) *url.URL {
	if given == nil {
		return &url.URL{Scheme: "https", Host: account + ".blob.core.windows.net"}
	}
	endpoint := *given
	endpoint.Path = strings.TrimSuffix(endpoint.Path, "/")
	return &endpoint
}

// String implements store.Store.
func (s *Store) String() string { return "azblob://" + s.container + "/" + s.prefix }

// request builds a request. An empty key stands for the container.
func (s *Store) request(method, key string, query url.Values, body io.Reader) (*http.Request, error) {
	target := s.endpoint.JoinPath(s.container)
	if key != "" {
		target.Path, target.RawPath = target.Path+"/"+key, target.EscapedPath()+"/"+escape(key)
	}
	target.RawQuery = query.Encode()
	request, err := http.NewRequest(method, target.String(), body)
	if err == nil {
		request.Header.Set("X-Ms-Version", version)
	}
	return request, err
}

// escape keeps the slashes.
func escape(key string) string { return strings.ReplaceAll(url.PathEscape(key), "%2F", "/") }

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if length == 0 {
		return wire.EmptyIfExists(s.Get(ctx, name, offset, 1))
	}
	response, err := s.client.Do(ctx, func() (*http.Request, error) {
		request, err := s.request(http.MethodGet, s.prefix+name, nil, nil)
		if wanted := wire.Range(offset, length); err == nil && wanted != "" {
			request.Header.Set("Range", wanted)
		}
		return request, err
	}, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, s.failed("cannot read "+name, err)
	}
	body, err := wire.Body(response, offset, length)
	return body, s.failed("cannot read "+name, err)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	response, err := s.client.Do(ctx, func() (*http.Request, error) {
		return s.request(http.MethodDelete, s.prefix+name, nil, nil)
	}, http.StatusAccepted)
	return s.failed("cannot delete "+name, wire.Deleted(response, err))
}

// List implements store.Store. Azure cannot start a listing after a name, so the objects before it are read and skipped.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return store.InOrder(s.list(ctx, prefix), s.prefix, after)
}

func (s *Store) list(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {s.prefix + prefix}, "maxresults": {"5000"}}
	return wire.Pages(func(mark string) (objects []store.Object, next string, err error) {
		if mark != "" {
			query.Set("marker", mark)
		}
		found, err := s.page(ctx, query)
		if err != nil {
			return nil, "", s.failed("cannot list", err)
		}
		for _, blob := range found.Blobs {
			objects = append(objects, store.Object{Name: blob.Name, Size: blob.Size, Modified: blob.Modified.Time})
		}
		return objects, found.Next, nil
	})
}

type page struct {
	XMLName xml.Name `xml:"EnumerationResults"` // any other document would look like an empty listing
	Next    string   `xml:"NextMarker"`
	Blobs   []struct {
		Name     string   `xml:"Name"`
		Size     int64    `xml:"Properties>Content-Length"`
		Modified httpTime `xml:"Properties>Last-Modified"`
	} `xml:"Blobs>Blob"`
}

// httpTime is a time in the format of HTTP headers.
type httpTime struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *httpTime) UnmarshalText(text []byte) (err error) {
	t.Time, err = http.ParseTime(string(text))
	return err
}

// maxXML limits a page, in bytes; one of 5,000 blobs has 5 MB.
const maxXML = 16 << 20

func (s *Store) page(ctx context.Context, query url.Values) (found page, err error) {
	response, err := s.client.Do(ctx, func() (*http.Request, error) {
		return s.request(http.MethodGet, "", query, nil)
	}, http.StatusOK)
	if err != nil {
		return found, err
	}
	defer wire.Discard(response)
	text, err := io.ReadAll(io.LimitReader(response.Body, maxXML))
	if err != nil {
		return found, err
	}
	if xml.Unmarshal(text, &found) != nil {
		return found, errors.New("the response is not the expected XML")
	}
	return found, nil
}

// failed adds the operation and the store to an error.
func (s *Store) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", doing, s, err)
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

// refusal returns why a request was refused. Azure names the reason in a header: a 404 without it is another server's.
func refusal(response *http.Response) error {
	answer := wire.ResponseOf(response)
	answer.Code = response.Header.Get("X-Ms-Error-Code")
	if answer.Code == "" && answer.Status == http.StatusNotFound {
		return wire.ErrNoBucket
	}
	return answer.Error(codes)
}

// now returns the time of requests.
var now = time.Now
