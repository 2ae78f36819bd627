// Package s3 stores objects in Amazon S3 and compatible stores.
package s3

import (
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// amazon is the default host. It is used to find the region of a bucket. All other requests are sent to the host for
// that region.
const amazon = "s3.amazonaws.com"

// Store is a bucket, or a prefix in a bucket.
type Store struct {
	wire.Bucket
	bucket      string
	endpoint    *url.URL
	subdomain   bool // the bucket name is part of the hostname instead of the path
	credentials *credentials.Credentials

	mu     sync.Mutex
	region string // empty if unknown
}

// New validates the location without connecting. The endpoint consists of a host and a port, and defaults to
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon. The region defaults to AWS_REGION, AWS_DEFAULT_REGION, or the
// bucket's region. With pathStyle, the bucket name is part of the path instead of the hostname.
func New(loc wire.Location, region string, pathStyle bool) (*Store, error) {
	if err := s3utils.CheckValidBucketNameStrict(loc.Bucket); err != nil {
		return nil, fmt.Errorf("invalid bucket name %q: must be a lowercase DNS name of 3 to 63 characters", loc.Bucket)
	}
	endpoint, err := endpointOf(loc.Endpoint)
	if err != nil {
		return nil, err
	}
	client, err := wire.NewClient(loc.CAPath)
	if err != nil {
		return nil, err
	}
	region = cmp.Or(region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), s3utils.GetRegionFromURL(*endpoint))
	if region == "" && !s3utils.IsAmazonEndpoint(*endpoint) {
		region = "us-east-1" // servers other than Amazon's accept any region
	}
	s := &Store{
		bucket: loc.Bucket, endpoint: endpoint, credentials: credentials.New(&chain{iam: &credentials.IAM{Client: wire.IdentityClient()}}), region: region,
		subdomain: !pathStyle && s3utils.IsVirtualHostSupported(*endpoint, loc.Bucket),
	}
	s.Bucket = wire.Bucket{
		Name: "s3://" + loc.Bucket + "/" + loc.Prefix, Prefix: loc.Prefix, URL: s.url,
		Deleted: []int{http.StatusNoContent}, Page: s.page, Upload: s.upload,
		Client: wire.Client{
			HTTP: client, Authorize: s.authorize, Expire: s.expire, Unmarshal: xml.Unmarshal, Reason: reason, Codes: codes,
		},
	}
	return s, nil
}

func (s *Store) expire(int) { s.credentials.Expire() }

func endpointOf(given *url.URL) (*url.URL, error) {
	if given != nil {
		return given, nil
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if value := os.Getenv(name); value != "" {
			endpoint, err := wire.ParseEndpoint(value)
			if err != nil || strings.Trim(endpoint.Path, "/") != "" {
				return nil, fmt.Errorf("%s must be http(s)://HOST[:PORT]", name)
			}
			return endpoint, nil
		}
	}
	return &url.URL{Scheme: "https", Host: amazon}, nil
}

func (s *Store) url(key string) string {
	base := s.endpoint.Scheme + "://" + s.endpoint.Host + "/" + s.bucket + "/"
	if s.subdomain {
		base = s.endpoint.Scheme + "://" + s.bucket + "." + s.endpoint.Host + "/"
	}
	return base + s3utils.EncodePath(key)
}

// authorize signs a request and, for Amazon, sends it to the host for the bucket's region.
func (s *Store) authorize(request *http.Request) error {
	region, err := s.findRegion(request.Context())
	if err != nil {
		return err
	}
	if s.endpoint.Host == amazon {
		request.URL.Host = strings.TrimSuffix(request.URL.Host, amazon) + regionalHost(region)
	}
	return s.sign(request, region)
}

func regionalHost(region string) string {
	host := "s3.dualstack." + region + ".amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		host += ".cn"
	}
	return host
}

func (s *Store) sign(request *http.Request, region string) error {
	value, err := s.credentials.GetWithContext(&credentials.CredContext{Context: request.Context()})
	if err != nil {
		return err
	}
	body, err := request.GetBody()
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, body); err != nil {
		return err
	}
	request.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum.Sum(nil)))
	request.Host = request.URL.Host
	*request = *signer.SignV4(*request, value.AccessKeyID, value.SecretAccessKey, value.SessionToken, region)
	return nil
}

// findRegion returns the configured region. If no region is configured, findRegion asks Amazon once for the bucket's
// region, using HeadBucket (https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html).
func (s *Store) findRegion(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.region != "" {
		return s.region, nil
	}
	client := s.Client
	client.Authorize = func(request *http.Request) error { return s.sign(request, "us-east-1") }
	response, err := client.Send(ctx, wire.Request{Method: http.MethodHead, URL: s.url("")}, nil,
		http.StatusOK, http.StatusMovedPermanently, http.StatusBadRequest, http.StatusForbidden)
	if errors.Is(err, store.ErrNotFound) {
		return "", wire.ErrNoBucket
	}
	if err != nil {
		return "", err
	}
	if s.region = response.Header.Get("X-Amz-Bucket-Region"); s.region == "" {
		return "", fmt.Errorf("the server did not return the bucket's region; set region= or AWS_REGION: %w", store.ErrDenied)
	}
	return s.region, nil
}

func (s *Store) page(ctx context.Context, prefix, after, mark string) (objects []store.Object, next string, err error) {
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"` // otherwise, an unrelated document would look like an empty listing
		EncodingType          string
		IsTruncated           bool
		NextContinuationToken string
		Contents              []struct {
			Key          string
			Size         int64
			LastModified time.Time
		}
	}
	query := url.Values{"list-type": {"2"}, "encoding-type": {"url"}, "prefix": {prefix}}
	if after != "" {
		query.Set("start-after", after)
	}
	if mark != "" {
		query.Set("continuation-token", mark)
	}
	if _, err := s.Send(ctx, wire.Request{Method: http.MethodGet, URL: s.url(""), Query: query}, &page, http.StatusOK); err != nil {
		return nil, "", err
	}
	for _, found := range page.Contents {
		objects = append(objects, store.Object{
			Name: decodeKey(found.Key, page.EncodingType), Size: found.Size, Modified: found.LastModified,
		})
	}
	switch {
	case !page.IsTruncated: // some servers send a token even on the last page
		return objects, "", nil
	case page.NextContinuationToken == "":
		return nil, "", wire.ErrUnexpectedResponse("a continuation token")
	default:
		return objects, page.NextContinuationToken, nil
	}
}

// decodeKey decodes a key from a listing, in which the server encodes keys because some are not valid XML.
func decodeKey(key, encoding string) string {
	if decoded, err := url.QueryUnescape(key); err == nil && encoding == "url" {
		return decoded
	}
	return key
}

// uploadAge is the age after which an unfinished upload is considered abandoned.
const uploadAge = 24 * time.Hour

// Sweep implements store.Sweeper by aborting multipart uploads under the prefix that are more than a day old.
func (s *Store) Sweep(ctx context.Context) (removed int, err error) {
	return s.sweep(ctx, time.Now().Add(-uploadAge))
}

func (s *Store) sweep(ctx context.Context, before time.Time) (removed int, err error) {
	query := url.Values{"uploads": {""}, "encoding-type": {"url"}, "prefix": {s.Prefix}}
	for {
		var page struct {
			XMLName            xml.Name `xml:"ListMultipartUploadsResult"`
			EncodingType       string
			IsTruncated        bool
			NextKeyMarker      string
			NextUploadIDMarker string `xml:"NextUploadIdMarker"`
			Uploads            []struct {
				Key       string
				ID        string `xml:"UploadId"`
				Initiated time.Time
			} `xml:"Upload"`
		}
		request := wire.Request{Method: http.MethodGet, URL: s.url(""), Query: query}
		if _, err := s.Send(ctx, request, &page, http.StatusOK); err != nil {
			return removed, s.Failed("cannot list unfinished uploads", err)
		}
		for _, found := range page.Uploads {
			if !found.Initiated.Before(before) {
				continue
			}
			if err := s.abort(ctx, decodeKey(found.Key, page.EncodingType), found.ID); err != nil {
				return removed, s.Failed("cannot abort an unfinished upload", err)
			}
			removed++
		}
		if !page.IsTruncated {
			return removed, nil
		}
		query.Set("key-marker", decodeKey(page.NextKeyMarker, page.EncodingType))
		query.Set("upload-id-marker", page.NextUploadIDMarker)
	}
}

// abort aborts an upload, unless another process has already aborted it.
func (s *Store) abort(ctx context.Context, key, id string) error {
	request := wire.Request{Method: http.MethodDelete, URL: s.url(key), Query: url.Values{"uploadId": {id}}}
	_, err := s.Send(ctx, request, nil, http.StatusNoContent, http.StatusNotFound)
	return err
}

const locked = "ObjectLocked"

// codes maps S3 error codes to errors.
var codes = map[string]error{
	"NoSuchKey":                  store.ErrNotFound,
	"NoSuchBucket":               store.ErrNoBucket,
	"PreconditionFailed":         store.ErrExists,
	locked:                       store.ErrLocked,
	"RequestTimeTooSkewed":       store.ErrSkewed,
	"ExpiredToken":               store.ErrDenied,
	"ExpiredTokenException":      store.ErrDenied,
	"InvalidToken":               store.ErrDenied,
	"TokenRefreshRequired":       store.ErrDenied,
	"XAdminUserNotFound":         store.ErrDenied,      // returned by versitygw, with status 404, if the access key is unknown
	"ConditionalRequestConflict": store.ErrUnavailable, // another operation on the same object is in progress
	"OperationAborted":           store.ErrUnavailable,
	"RequestTimeout":             store.ErrUnavailable,
	"BadDigest":                  store.ErrUnavailable, // corrupted in transit
	"NoSuchUpload":               store.ErrUnavailable, // the upload was completed but the reply was lost, or another process aborted it
	"SlowDown":                   store.ErrUnavailable,
	"InternalError":              store.ErrUnavailable,
	"ServiceUnavailable":         store.ErrUnavailable,
}

func reason(status int, _ http.Header, body []byte) string {
	var refused struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}
	_ = xml.Unmarshal(body, &refused) // if the body is invalid, the status decides
	switch {
	case status == http.StatusForbidden && strings.Contains(strings.ToLower(refused.Message), "object lock"):
		return locked // Amazon returns AccessDenied and mentions the lock only in the message
	case status == http.StatusPreconditionFailed:
		return "PreconditionFailed"
	default:
		return refused.Code
	}
}

// chain implements credentials.Provider with the same sources as Amazon's own tools: the environment, files, and
// then the workload identity (IRSA, Pod Identity, ECS) or the machine's role. The library serializes calls to
// chain. Unlike the library's own chain, chain returns an error if there are no credentials.
type chain struct {
	iam    *credentials.IAM
	source credentials.Provider // source of the credentials, or nil
}

var errNone = fmt.Errorf("no credentials found in the environment, files, workload identity or instance metadata: %w", store.ErrDenied)

// Retrieve implements credentials.Provider.
func (c *chain) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext implements credentials.Provider.
func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	environment := &credentials.EnvAWS{}
	if value, err := environment.RetrieveWithCredContext(cc); err == nil && value.AccessKeyID != "" {
		c.source = environment
		return trimSpace(value), nil
	}
	files := &credentials.FileAWSCredentials{}
	value, err := files.RetrieveWithCredContext(cc)
	if err == nil && value.AccessKeyID != "" {
		c.source = files
		return value, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && os.Getenv("AWS_SHARED_CREDENTIALS_FILE") != "" {
		return credentials.Value{}, fmt.Errorf("cannot read credentials for the AWS profile from AWS_SHARED_CREDENTIALS_FILE: %w", store.ErrDenied)
	}
	c.source = c.iam
	return c.fromIAM(cc)
}

// trimSpace removes whitespace around credentials, because a Secret created from a file often ends with a newline.
func trimSpace(value credentials.Value) credentials.Value {
	for _, part := range []*string{&value.AccessKeyID, &value.SecretAccessKey, &value.SessionToken} {
		*part = strings.TrimSpace(*part)
	}
	return value
}

func (c *chain) fromIAM(cc *credentials.CredContext) (credentials.Value, error) {
	if !hasIdentity() && os.Getenv("AWS_EC2_METADATA_DISABLED") == "true" {
		return credentials.Value{}, errNone
	}
	value, err := c.iam.RetrieveWithCredContext(cc)
	var refused credentials.ErrorResponse
	switch {
	case err == nil && value.AccessKeyID != "":
		return value, nil
	case !hasIdentity():
		return credentials.Value{}, errNone
	case cc != nil && cc.Context != nil && cc.Context.Err() != nil:
		return credentials.Value{}, context.Cause(cc.Context)
	case errors.As(err, &refused):
		return credentials.Value{}, fmt.Errorf("workload identity was rejected: %w", store.ErrDenied)
	default:
		return credentials.Value{}, &store.Unavailable{Cause: errors.New("cannot get credentials for the workload identity")}
	}
}

func hasIdentity() bool {
	names := []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}
	return slices.ContainsFunc(names, func(name string) bool { return os.Getenv(name) != "" })
}

// IsExpired implements credentials.Provider. The library's file provider always reports that its credentials have
// expired, so credentials from files are read again for each request.
func (c *chain) IsExpired() bool { return c.source == nil || c.source.IsExpired() }

// upload creates an object in a single request or a multipart upload. The last request of a multipart upload contains
// If-None-Match, because S3 ignores this header in the first request.
type upload struct {
	store *Store
	key   string
	id    string
	parts []part
	sums  []byte // MD5 of each part
	size  int64  // total size of all parts
}

type part struct {
	PartNumber int
	ETag       string
}

var ifAbsent = map[string]string{"If-None-Match": "*"}

func (s *Store) upload(key string) wire.Upload { return &upload{store: s, key: key} }

// send sends a request with the MD5 of its body, which buckets with object lock require.
func (u *upload) send(ctx context.Context, method string, query url.Values, header map[string]string, body []byte, into any) (etag string, err error) {
	sum := md5.Sum(body)
	all := map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:]), "Content-Type": "application/octet-stream"}
	maps.Copy(all, header)
	request := wire.Request{Method: method, URL: u.store.url(u.key), Query: query, Header: all, Body: body}
	response, err := u.store.Send(ctx, request, into, http.StatusOK)
	if err != nil {
		return "", err
	}
	return trimETag(response.Header.Get("ETag")), nil
}

// Create implements wire.Upload.
func (u *upload) Create(ctx context.Context, content []byte) error {
	etag, err := u.send(ctx, http.MethodPut, nil, ifAbsent, content, nil)
	if err != nil {
		return err
	}
	return u.confirm(ctx, etag, hexMD5(content), int64(len(content)))
}

// confirm checks that a successful response comes from the store and refers to the uploaded bytes. The ETag is the
// MD5 of the bytes unless the bucket uses its own encryption key. If the ETag is not the MD5, confirm compares the
// size and ETag of the stored object (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html, "ETag").
func (u *upload) confirm(ctx context.Context, etag, sum string, size int64) error {
	switch etag {
	case sum:
		return nil
	case "":
		return wire.ErrUnexpectedResponse("an ETag")
	}
	stored, err := u.store.Send(ctx, wire.Request{Method: http.MethodHead, URL: u.store.url(u.key)}, nil, http.StatusOK)
	if err == nil && (trimETag(stored.Header.Get("ETag")) != etag || stored.ContentLength != size) {
		err = wire.ErrUnexpectedResponse("the expected ETag and size")
	}
	return err
}

// Start implements wire.Upload.
func (u *upload) Start(ctx context.Context) error {
	var started struct {
		XMLName xml.Name `xml:"InitiateMultipartUploadResult"`
		ID      string   `xml:"UploadId"`
	}
	_, err := u.send(ctx, http.MethodPost, url.Values{"uploads": {""}}, nil, nil, &started)
	u.id = started.ID
	return err
}

// Part implements wire.Upload.
func (u *upload) Part(ctx context.Context, piece []byte, last bool) error {
	if len(piece) > 0 {
		number := len(u.parts) + 1
		etag, err := u.send(ctx, http.MethodPut, url.Values{"partNumber": {fmt.Sprint(number)}, "uploadId": {u.id}}, nil, piece, nil)
		if err == nil && etag == "" {
			err = wire.ErrUnexpectedResponse("an ETag")
		}
		if err != nil {
			return err
		}
		sum := md5.Sum(piece)
		u.sums, u.size = append(u.sums, sum[:]...), u.size+int64(len(piece))
		u.parts = append(u.parts, part{number, etag})
	}
	if !last {
		return nil
	}
	return u.complete(ctx)
}

func (u *upload) complete(ctx context.Context) error {
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Parts   []part   `xml:"Part"`
	}{Parts: u.parts})
	if err != nil {
		return err
	}
	var completed struct {
		XMLName xml.Name // the result, or an error even though the status is 200
		ETag    string
	}
	if _, err := u.send(ctx, http.MethodPost, url.Values{"uploadId": {u.id}}, ifAbsent, list, &completed); err != nil {
		return err
	}
	if completed.XMLName.Local == "Error" {
		return &store.Unavailable{Cause: errors.New("the server could not complete the upload")}
	}
	return u.confirm(ctx, trimETag(completed.ETag), fmt.Sprintf("%s-%d", hexMD5(u.sums), len(u.parts)), u.size)
}

// Abort implements wire.Upload. If the upload was completed but the reply was lost, Abort has no effect. Sweep
// aborts any remaining uploads.
func (u *upload) Abort(ctx context.Context) { _ = u.store.abort(ctx, u.key, u.id) }

// hexMD5 returns an MD5 in the format of an S3 ETag.
func hexMD5(content []byte) string {
	sum := md5.Sum(content)
	return hex.EncodeToString(sum[:])
}

func trimETag(etag string) string { return strings.Trim(etag, `"`) }
