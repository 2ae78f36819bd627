// Package s3 keeps objects in Amazon S3 and in what speaks its protocol.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// amazon is the default endpoint.
const amazon = "https://s3.amazonaws.com"

// Options locate a store.
type Options struct {
	Bucket    string
	Prefix    string   // prefix of all names: empty, or ending with a slash
	Endpoint  *url.URL // http or https, host and port only; nil: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon
	Region    string   // empty: AWS_REGION, AWS_DEFAULT_REGION, or the bucket's own
	PathStyle bool     // the bucket's name is in the path instead of the host
	Wire      wire.Options
}

// Store is a bucket or a prefix in it.
type Store struct {
	bucket, prefix string
	core           minio.Core
	credentials    *credentials.Credentials
}

// New checks the options and returns an error about the wrong one. It contacts nothing.
func New(options Options) (*Store, error) {
	if err := s3utils.CheckValidBucketNameStrict(options.Bucket); err != nil {
		return nil, fmt.Errorf("%q is not the name of a bucket", options.Bucket)
	}
	endpoint, err := endpointOf(options.Endpoint)
	if err != nil {
		return nil, err
	}
	transport, err := wire.NewTransport(options.Wire)
	if err != nil {
		return nil, err
	}
	found, err := newCredentials()
	if err != nil {
		return nil, err
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds: found, Secure: endpoint.Scheme == "https", Transport: listings{transport}, MaxRetries: 3,
		Region: regionOf(options.Region, endpoint), BucketLookup: lookupOf(options.PathStyle),
	})
	if err != nil {
		return nil, fmt.Errorf("endpoint %s cannot be used", endpoint.Redacted())
	}
	return &Store{bucket: options.Bucket, prefix: options.Prefix, core: minio.Core{Client: client}, credentials: found}, nil
}

func endpointOf(given *url.URL) (*url.URL, error) {
	if given != nil {
		return given, nil
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if value := os.Getenv(name); value != "" {
			endpoint, err := wire.ParseEndpoint(value)
			if err != nil || strings.Trim(endpoint.Path, "/") != "" {
				return nil, fmt.Errorf("environment variable %s is not http(s)://HOST[:PORT]", name)
			}
			return endpoint, nil
		}
	}
	return url.Parse(amazon)
}

// regionOf returns no region for Amazon if none is configured: the client then asks the bucket. Other servers accept any.
func regionOf(given string, endpoint *url.URL) string {
	for _, region := range []string{given, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")} {
		if region != "" {
			return region
		}
	}
	if s3utils.IsAmazonEndpoint(*endpoint) {
		return ""
	}
	return "us-east-1"
}

func lookupOf(pathStyle bool) minio.BucketLookupType {
	if pathStyle {
		return minio.BucketLookupPath
	}
	return minio.BucketLookupAuto
}

// String implements store.Store.
func (s *Store) String() string { return "s3://" + s.bucket + "/" + s.prefix }

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if length == 0 {
		length = 1 // a range cannot be empty, but the object must exist
		return wire.EmptyIfExists(s.Get(ctx, name, offset, length))
	}
	options := minio.GetObjectOptions{}
	if wanted := wire.Range(offset, length); wanted != "" {
		options.Set("Range", wanted)
	}
	call := s.begin(ctx)
	body, info, header, err := s.core.GetObject(call.ctx, s.bucket, s.prefix+name, options)
	switch {
	case err != nil && call.note.Status == http.StatusRequestedRangeNotSatisfiable:
		return wire.Empty(), nil
	case err != nil && strings.Contains(call.note.Type, "xml"): // the response is S3's
		return nil, call.failed("cannot read "+name, err)
	case err != nil:
		return nil, wire.ConfirmMissing(ctx, s, name, call.failed("cannot read "+name, err))
	case !wire.IsRangeFrom(header.Get("Content-Range"), offset, info.Size):
		_ = body.Close()
		return nil, fmt.Errorf("cannot read %s from %s: %w", name, s, wire.ErrOtherRange)
	default:
		return wire.Limit(body, length), nil
	}
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if err := store.CheckPrefix(prefix, after); err != nil {
		return store.Failed(err)
	}
	return store.InOrder(s.list(ctx, prefix, after), s.prefix, after)
}

func (s *Store) list(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	options := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}
	if after != "" {
		options.StartAfter = s.prefix + after
	}
	return func(yield func(store.Object, error) bool) {
		call := s.begin(ctx)
		for object := range s.core.ListObjectsIter(call.ctx, s.bucket, options) {
			if object.Err != nil {
				yield(store.Object{}, call.failed("cannot list", object.Err))
				return
			}
			if !yield(store.Object{Name: object.Key, Size: object.Size, Modified: object.LastModified}, nil) {
				return
			}
		}
		// The library ends a listing without an error when the context ends.
		if ctx.Err() != nil {
			yield(store.Object{}, call.failed("cannot list", ctx.Err()))
		}
	}
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	call := s.begin(ctx)
	err := s.core.RemoveObject(call.ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{})
	if err = call.failed("cannot delete "+name, err); errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// uploadAge is the age from which an unfinished upload is considered abandoned.
const uploadAge = 24 * time.Hour

// Sweep implements store.Sweeper. It aborts multipart uploads below the prefix that are a day old.
func (s *Store) Sweep(ctx context.Context) (removed int, err error) {
	return s.sweep(ctx, time.Now().Add(-uploadAge))
}

func (s *Store) sweep(ctx context.Context, before time.Time) (removed int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the goroutine of the listing
	call := s.begin(ctx)
	for upload := range s.core.ListIncompleteUploads(call.ctx, s.bucket, s.prefix, true) {
		if upload.Err != nil {
			return removed, call.failed("cannot list unfinished uploads", upload.Err)
		}
		if !upload.Initiated.Before(before) {
			continue
		}
		err := s.core.AbortMultipartUpload(call.ctx, s.bucket, upload.Key, upload.UploadID)
		if err != nil && minio.ToErrorResponse(err).Code != "NoSuchUpload" {
			return removed, call.failed("cannot abort an unfinished upload", err)
		}
		removed++
	}
	return removed, context.Cause(ctx)
}
