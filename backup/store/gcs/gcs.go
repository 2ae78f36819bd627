// Package gcs keeps objects in Google Cloud Storage, over its JSON API.
package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// googleapis is the default endpoint.
const googleapis = "https://storage.googleapis.com"

// bucketName matches names of buckets: 3 to 63 letters, digits, - _ and dots, more with dots.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]+[a-z0-9]$`)

// longestBucketName limits a name. Inside the expression the limit would cost each start half a millisecond.
const longestBucketName = 222

// Options locate a store.
type Options struct {
	Bucket   string
	Prefix   string   // prefix of all names: empty, or ending with a slash
	Endpoint *url.URL // nil: Google. Plain HTTP means an emulator, which gets no credentials
	Wire     wire.Options
}

// Store is a bucket or a prefix in it.
type Store struct {
	bucket, prefix string
	endpoint       string // without a trailing slash
	client         *wire.Client
}

// New checks the options and returns an error about the wrong one. It contacts nothing.
func New(options Options) (*Store, error) {
	if len(options.Bucket) > longestBucketName || !bucketName.MatchString(options.Bucket) {
		return nil, fmt.Errorf("%q is not the name of a bucket", options.Bucket)
	}
	transport, err := wire.NewTransport(options.Wire)
	if err != nil {
		return nil, err
	}
	s := &Store{bucket: options.Bucket, prefix: options.Prefix, endpoint: googleapis}
	s.client = &wire.Client{HTTP: wire.NewClient(transport), Authorize: anonymous, Refusal: refusal}
	if options.Endpoint != nil {
		s.endpoint = strings.TrimSuffix(options.Endpoint.String(), "/")
	}
	if options.Endpoint != nil && options.Endpoint.Scheme == "http" {
		return s, nil
	}
	tokens, err := newTokens()
	if err != nil {
		return nil, err
	}
	s.client.Authorize = tokens.authorize
	s.client.Refusal = tokens.forgetIfDenied
	return s, nil
}

func anonymous(*http.Request) error { return nil }

// String implements store.Store.
func (s *Store) String() string { return "gs://" + s.bucket + "/" + s.prefix }

// request returns a function that builds a request. The path starts with a slash and is escaped.
func (s *Store) request(method, path string, query url.Values) func() (*http.Request, error) {
	return func() (*http.Request, error) {
		return http.NewRequest(method, s.endpoint+path+"?"+query.Encode(), nil)
	}
}

func (s *Store) bucketPath() string { return "/storage/v1/b/" + url.PathEscape(s.bucket) + "/o" }

func (s *Store) objectPath(name string) string {
	return s.bucketPath() + "/" + url.PathEscape(s.prefix+name)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if length == 0 {
		return wire.EmptyIfExists(s.Get(ctx, name, offset, 1))
	}
	media := s.request(http.MethodGet, s.objectPath(name), url.Values{"alt": {"media"}})
	response, err := s.client.Do(ctx, func() (*http.Request, error) {
		request, err := media()
		if wanted := wire.Range(offset, length); err == nil && wanted != "" {
			request.Header.Set("Range", wanted)
		}
		return request, err
	}, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, wire.ConfirmMissing(ctx, s, name, s.failed("cannot read "+name, err))
	}
	body, err := wire.Body(response, offset, length)
	return body, s.failed("cannot read "+name, err)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	response, err := s.client.Do(ctx, s.request(http.MethodDelete, s.objectPath(name), nil), http.StatusOK, http.StatusNoContent)
	return s.failed("cannot delete "+name, wire.Deleted(response, err))
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return store.InOrder(s.list(ctx, prefix, after), s.prefix, after)
}

func (s *Store) list(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	query := url.Values{"prefix": {s.prefix + prefix}, "maxResults": {"1000"}}
	query.Set("fields", "kind,nextPageToken,items(name,size,timeCreated)")
	if after != "" {
		query.Set("startOffset", s.prefix+after)
	}
	return wire.Pages(func(mark string) (objects []store.Object, next string, err error) {
		if mark != "" {
			query.Set("pageToken", mark)
		}
		found, err := s.page(ctx, query)
		if err != nil {
			return nil, "", s.failed("cannot list", err)
		}
		for _, item := range found.Items {
			objects = append(objects, store.Object{Name: item.Name, Size: item.Size, Modified: item.Created})
		}
		return objects, found.Next, nil
	})
}

type page struct {
	Kind  string `json:"kind"`
	Next  string `json:"nextPageToken"`
	Items []struct {
		Name    string    `json:"name"`
		Size    int64     `json:"size,string"`
		Created time.Time `json:"timeCreated"`
	} `json:"items"`
}

func (s *Store) page(ctx context.Context, query url.Values) (found page, err error) {
	response, err := s.client.Do(ctx, s.request(http.MethodGet, s.bucketPath(), query), http.StatusOK)
	if errors.Is(err, store.ErrNotFound) {
		return found, wire.ErrNoBucket
	}
	if err != nil {
		return found, err
	}
	defer wire.Discard(response)
	err = decode(response.Body, &found)
	if err == nil && found.Kind != "storage#objects" { // any other document would look like an empty listing
		err = errors.New("the response is not a listing of Google Cloud Storage; check that endpoint= is the store itself")
	}
	return found, err
}
