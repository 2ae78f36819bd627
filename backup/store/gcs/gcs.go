// Package gcs stores objects in Google Cloud Storage using the JSON API.
package gcs

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
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

// longestBucketName is the maximum length of a bucket name. The limit is not part of the regular expression,
// because compiling it would add half a millisecond to each start.
const longestBucketName = 222

// Store is a bucket, or a prefix in a bucket.
type Store struct {
	wire.Bucket
	objects string // URL of the bucket's objects, without a trailing slash
	uploads string // URL for creating objects
}

// New validates the location without connecting. New assumes that a plain HTTP endpoint is an emulator, so no
// credentials are sent to it.
func New(loc wire.Location) (*Store, error) {
	if len(loc.Bucket) > longestBucketName || !bucketName.MatchString(loc.Bucket) {
		return nil, fmt.Errorf("invalid bucket name %q: must be 3 to 222 characters (a-z, 0-9, dots, underscores or hyphens) and start and end with a letter or digit", loc.Bucket)
	}
	client, err := wire.NewClient(loc.CAPath)
	if err != nil {
		return nil, err
	}
	endpoint, path := googleapis, "/storage/v1/b/"+url.PathEscape(loc.Bucket)+"/o"
	if loc.Endpoint != nil {
		endpoint = strings.TrimSuffix(loc.Endpoint.String(), "/")
	}
	s := &Store{objects: endpoint + path, uploads: endpoint + "/upload" + path}
	s.Bucket = wire.Bucket{
		Name: "gs://" + loc.Bucket + "/" + loc.Prefix, Prefix: loc.Prefix, URL: s.url, Media: url.Values{"alt": {"media"}},
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
	if page.Kind != "storage#objects" { // otherwise, an unrelated document would look like an empty listing
		return nil, "", wire.ErrUnexpectedResponse("a listing")
	}
	for _, item := range page.Items {
		objects = append(objects, store.Object{Name: item.Name, Size: item.Size, Modified: item.Created})
	}
	return objects, page.Next, nil
}

const (
	missing = "notFound" // the object, bucket or upload is missing
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

// reason returns Google's error reason for a response. It uses the status where possible, because an emulator may
// omit the body.
func reason(status int, _ http.Header, body []byte) string {
	var refused struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &refused) // if the body is invalid, the status decides
	message := strings.ToLower(refused.Error.Message)
	switch {
	case status == http.StatusForbidden && (strings.Contains(message, "retention") || strings.Contains(message, " hold")):
		return held // some holds are only mentioned in the message
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

// newTokens returns Tokens that use the same sources as Google's own tools: a file, workload identity federation, or
// the metadata server.
func newTokens() *wire.Tokens {
	return &wire.Tokens{HTTP: wire.IdentityClient(), Find: findSource, File: keyFile}
}

// findSource returns a token source that uses the credentials file or, if there is none, the machine's account.
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

// machine is a token source for the machine's account, or for the account that GKE assigns to the workload. Google's
// library is not used, because it looks for a metadata server only once, and a pod may start before GKE's metadata
// server does.
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

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// upload creates a small object in a single request and a large object in a resumable upload.
type upload struct {
	store   *Store
	key     string
	target  wire.Request // URL of the resumable upload
	sent    int64        // number of bytes that the server has received
	sum     uint32       // CRC32C of all pieces so far
	created bool
}

func (s *Store) upload(key string) wire.Upload { return &upload{store: s, key: key} }

// request returns a request that creates an object or starts its upload.
func (u *upload) request(kind string) wire.Request {
	query := url.Values{"uploadType": {kind}, "name": {u.key}, "ifGenerationMatch": {"0"}}
	return wire.Request{Method: http.MethodPost, URL: u.store.uploads, Query: query}
}

// Create implements wire.Upload.
func (u *upload) Create(ctx context.Context, content []byte) error {
	u.sum = crc32.Checksum(content, castagnoli)
	request := u.request("media")
	request.Body, request.Header, request.Once = content, u.hash(), true
	return u.send(ctx, request, http.StatusOK)
}

// hash returns a header with the checksum of all pieces, so that the server can detect corruption before it creates
// the object.
func (u *upload) hash() map[string]string {
	return map[string]string{"X-Goog-Hash": "crc32c=" + encode(u.sum)}
}

// Start implements wire.Upload. Start keeps using the configured endpoint instead of the host in the response, so
// that no other host receives the token.
func (u *upload) Start(ctx context.Context) error {
	response, err := u.store.Send(ctx, u.request("resumable"), nil, http.StatusOK)
	if err != nil {
		return err
	}
	location, err := url.Parse(response.Header.Get("Location"))
	if err != nil || location.Query().Get("upload_id") == "" {
		return wire.ErrUnexpectedResponse("an upload URL")
	}
	u.target = wire.Request{Method: http.MethodPut, URL: u.store.uploads, Query: location.Query()}
	return nil
}

// Part implements wire.Upload. After a failure, Part asks the server how many bytes it has received, and sends the
// rest.
func (u *upload) Part(ctx context.Context, piece []byte, last bool) error {
	begin, end, total := u.sent, u.sent+int64(len(piece)), "*"
	u.sum = crc32.Update(u.sum, castagnoli, piece)
	if last {
		total = fmt.Sprint(end)
	}
	for attempt := range 3 {
		err := u.sendFrom(ctx, piece[u.sent-begin:], total)
		if errors.Is(err, store.ErrUnavailable) && !u.created && attempt < 2 {
			query := u.target
			query.Header = map[string]string{"Content-Range": "bytes */" + total}
			err = u.send(ctx, query, http.StatusOK, http.StatusPermanentRedirect)
		}
		switch {
		case err != nil || u.created:
			return err
		case u.sent < begin || u.sent > end:
			return &store.Unavailable{Cause: errors.New("the server lost part of the upload")}
		case u.sent == end && !last:
			return nil
		}
	}
	return &store.Unavailable{Cause: fmt.Errorf("the server accepted only %d of %d bytes", u.sent, end)}
}

// sendFrom sends the bytes that the server has not received yet. The last request contains the checksum of all bytes.
func (u *upload) sendFrom(ctx context.Context, rest []byte, total string) error {
	request := u.target
	request.Body, request.Once, request.Header = rest, true, map[string]string{}
	if total != "*" {
		request.Header = u.hash()
	}
	request.Header["Content-Range"] = "bytes */" + total
	if len(rest) > 0 {
		request.Header["Content-Range"] = fmt.Sprintf("bytes %d-%d/%s", u.sent, u.sent+int64(len(rest))-1, total)
	}
	return u.send(ctx, request, http.StatusOK, http.StatusPermanentRedirect)
}

// send sends a request. The response contains either the number of received bytes or the metadata of the created
// object (https://cloud.google.com/storage/docs/json_api/v1/objects/insert). A wrong checksum in the metadata means
// that the object is corrupted and the server ignored the checksum header, so send deletes the object.
func (u *upload) send(ctx context.Context, request wire.Request, accepted ...int) error {
	var stored struct {
		Name       string `json:"name"`
		Checksum   string `json:"crc32c"`
		Generation string `json:"generation"`
	}
	response, err := u.store.Send(ctx, request, &stored, accepted...)
	switch {
	case errors.Is(err, store.ErrNotFound) && u.target.URL != "": // the upload was discarded, or it was completed but the reply was lost
		return &store.Unavailable{Cause: errors.New("the upload session no longer exists")}
	case err != nil:
		return err
	case response.StatusCode == http.StatusPermanentRedirect: // means "resume incomplete" in Google Cloud Storage
		u.sent = 0
		if _, err := fmt.Sscanf(response.Header.Get("Range"), "bytes=0-%d", &u.sent); err == nil {
			u.sent++
		}
		return nil
	case stored.Name != u.key || stored.Generation == "":
		return wire.ErrUnexpectedResponse("the object metadata")
	}
	u.created = true
	if stored.Checksum != encode(u.sum) {
		return u.remove(ctx, stored.Generation)
	}
	return nil
}

func (u *upload) remove(ctx context.Context, generation string) error {
	removal := wire.Request{Method: http.MethodDelete, URL: u.store.url(u.key), Query: url.Values{"generation": {generation}}}
	if _, err := u.store.Send(ctx, removal, nil, u.store.Deleted...); err != nil && !errors.Is(err, store.ErrNotFound) {
		return errors.New("the upload was corrupted in transit and the object could not be deleted; delete the object manually")
	}
	return &store.Unavailable{Cause: errors.New("the upload was corrupted in transit")}
}

// Abort implements wire.Upload. Uploads that are not aborted expire after a week.
func (u *upload) Abort(ctx context.Context) {
	request := u.target
	request.Method, request.Once = http.MethodDelete, true
	_, _ = u.store.Send(ctx, request, nil, http.StatusNoContent, 499)
}

func encode(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}
