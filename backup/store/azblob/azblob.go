// Package azblob stores objects in Azure Blob Storage using the REST API.
package azblob

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// version is the protocol version. All servers support this version, which includes access tokens and large blocks.
const version = "2021-12-02"

var (
	containerName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`) // and 3 to 63 characters
	accountName   = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
)

// Store is a container, or a prefix in a container.
type Store struct {
	wire.Bucket
	container *url.URL
}

// New validates the location without connecting. The endpoint is specific to the account. For an emulator, the
// endpoint includes a path. If account is empty, New uses AZURE_STORAGE_ACCOUNT.
func New(loc wire.Location, account string) (*Store, error) {
	if length := len(loc.Bucket); length < 3 || length > 63 || !containerName.MatchString(loc.Bucket) {
		return nil, fmt.Errorf("invalid container name %q: must be 3 to 63 characters (a-z, 0-9 or single hyphens) and start and end with a letter or digit", loc.Bucket)
	}
	account = cmp.Or(account, os.Getenv("AZURE_STORAGE_ACCOUNT"))
	if !accountName.MatchString(account) {
		return nil, fmt.Errorf("invalid storage account name %q: must be 3 to 24 characters (a-z or 0-9); set account= or AZURE_STORAGE_ACCOUNT", account)
	}
	client, err := wire.NewClient(loc.CAPath)
	if err != nil {
		return nil, err
	}
	if loc.Endpoint == nil {
		loc.Endpoint = &url.URL{Scheme: "https", Host: account + ".blob.core.windows.net"}
	}
	s := &Store{container: loc.Endpoint.JoinPath(loc.Bucket)}
	s.Bucket = wire.Bucket{
		Name: "azblob://" + loc.Bucket + "/" + loc.Prefix, Prefix: loc.Prefix, URL: s.url,
		Deleted: []int{http.StatusAccepted}, Page: s.page, Upload: s.upload,
		Client: wire.Client{
			HTTP: client, Header: map[string]string{"X-Ms-Version": version}, Unmarshal: xml.Unmarshal, Reason: reason, Codes: codes,
		},
	}
	return s, authorizeWith(&s.Client, account)
}

func (s *Store) url(key string) string {
	target := *s.container
	if key != "" { // JoinPath would remove a ".." element of the prefix
		escaped := strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
		target.Path, target.RawPath = target.Path+"/"+key, target.EscapedPath()+"/"+escaped
	}
	return target.String()
}

// page ignores after, because Azure cannot start a listing at a given name.
func (s *Store) page(ctx context.Context, prefix, _, mark string) (objects []store.Object, next string, err error) {
	var page struct {
		XMLName xml.Name `xml:"EnumerationResults"` // otherwise, an unrelated document would look like an empty listing
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

// httpTime is a time in the HTTP header format.
type httpTime struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *httpTime) UnmarshalText(text []byte) (err error) {
	t.Time, err = http.ParseTime(string(text))
	return err
}

// codes maps Azure's error codes to errors.
var codes = map[string]error{
	"BlobAlreadyExists":                 store.ErrExists,
	"UnauthorizedBlobOverwrite":         store.ErrExists, // returned for an existing blob if the client has no permission to overwrite it
	"ConditionNotMet":                   store.ErrExists,
	"BlobNotFound":                      store.ErrNotFound,
	"ContainerNotFound":                 store.ErrNoBucket,
	"ContainerBeingDeleted":             store.ErrNoBucket,
	"ContainerDisabled":                 store.ErrNoBucket,
	"BlobImmutableDueToPolicy":          store.ErrLocked,
	"BlobImmutableDueToLegalHold":       store.ErrLocked,
	"LeaseIdMissing":                    store.ErrLocked,
	"SnapshotsPresent":                  store.ErrLocked,
	"InvalidBlockList":                  store.ErrUnavailable, // another upload of the same blob has completed
	"Md5Mismatch":                       store.ErrUnavailable, // corrupted in transit
	"OperationTimedOut":                 store.ErrUnavailable,
	"ServerBusy":                        store.ErrUnavailable,
	"AccountBeingCreated":               store.ErrUnavailable,
	"InsufficientAccountPermissions":    store.ErrDenied,
	"InvalidAuthenticationInfo":         store.ErrDenied,
	"AuthorizationPermissionMismatch":   store.ErrDenied,
	"AuthorizationResourceTypeMismatch": store.ErrDenied,
}

func reason(_ int, header http.Header, _ []byte) string { return header.Get("X-Ms-Error-Code") }

// maxBlocks is the maximum number of blocks in an Azure blob.
const maxBlocks = 50_000

// upload creates a blob in a single request, or uploads blocks and then commits the block list, which makes the blob
// visible. Azure deletes uncommitted blocks after a week.
type upload struct {
	store  *Store
	target string
	id     string // distinguishes the blocks of concurrent uploads of the same blob
	blocks []string
}

func (s *Store) upload(key string) wire.Upload {
	return &upload{store: s, target: s.url(key), id: rand.Text()[:16]}
}

// Create implements wire.Upload.
func (u *upload) Create(ctx context.Context, content []byte) error {
	return u.create(ctx, nil, map[string]string{"If-None-Match": "*", "X-Ms-Blob-Type": "BlockBlob"}, content)
}

// Start implements wire.Upload.
func (u *upload) Start(context.Context) error { return nil }

// Part implements wire.Upload.
func (u *upload) Part(ctx context.Context, piece []byte, last bool) error {
	if len(u.blocks) == maxBlocks {
		return fmt.Errorf("the object is too large: more than %d blocks of %d bytes", maxBlocks, wire.PieceSize)
	}
	if len(piece) > 0 {
		id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", u.id, len(u.blocks)))
		u.blocks = append(u.blocks, id)
		if err := u.create(ctx, url.Values{"comp": {"block"}, "blockid": {id}}, nil, piece); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"BlockList"`
		Blocks  []string `xml:"Latest"`
	}{Blocks: u.blocks})
	if err != nil {
		return err
	}
	return u.create(ctx, url.Values{"comp": {"blocklist"}}, map[string]string{"If-None-Match": "*"}, list)
}

// Abort implements wire.Upload. Uncommitted blocks are invisible and cannot be deleted.
func (u *upload) Abort(context.Context) {}

// create sends a request that creates a block or a blob. A request that creates a blob is not retried, because a
// retry would find the blob that the first request created. A response without a request ID
// (https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-response-headers) is not from Azure.
func (u *upload) create(ctx context.Context, query url.Values, header map[string]string, body []byte) error {
	sum := md5.Sum(body)
	all := map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:]), "Content-Type": "application/octet-stream"}
	maps.Copy(all, header)
	request := wire.Request{Method: http.MethodPut, URL: u.target, Query: query, Header: all, Body: body, Once: header != nil}
	response, err := u.store.Send(ctx, request, nil, http.StatusCreated)
	if err == nil && response.Header.Get("X-Ms-Request-Id") == "" {
		return wire.ErrUnexpectedResponse("a request ID")
	}
	return err
}

const (
	resource = "https://storage.azure.com/"
	// early is the remaining lifetime at which a token is replaced.
	early = 5 * time.Minute
)

func findSource(ctx context.Context) (oauth2.TokenSource, error) {
	return oauth2.ReuseTokenSourceWithExpiry(nil, identity{ctx}, early), nil
}

// identity is a token source for the workload identity (using the token file that Kubernetes renews), a client
// secret, or the machine's managed identity. The environment variables and the file are read again for each token.
type identity struct {
	ctx context.Context // contains the HTTP client
}

// Token implements oauth2.TokenSource.
func (i identity) Token() (*oauth2.Token, error) {
	form := url.Values{}
	secret := os.Getenv("AZURE_CLIENT_SECRET")
	if path := os.Getenv("AZURE_FEDERATED_TOKEN_FILE"); path != "" {
		assertion, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read AZURE_FEDERATED_TOKEN_FILE: %w", errors.Join(err, store.ErrDenied))
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
		return nil, fmt.Errorf("AZURE_TENANT_ID is not set, or AZURE_AUTHORITY_HOST is not a valid URL: %w", store.ErrDenied)
	}
	login := clientcredentials.Config{
		ClientID: os.Getenv("AZURE_CLIENT_ID"), ClientSecret: secret, Scopes: []string{resource + ".default"}, EndpointParams: form,
		TokenURL: host.JoinPath(tenant, "oauth2/v2.0/token").String(), AuthStyle: oauth2.AuthStyleInParams,
	}
	return login.Token(i.ctx)
}

// managed fetches a token from the machine's identity endpoint. If the machine has multiple identities,
// AZURE_CLIENT_ID selects one.
func (i identity) managed() (*oauth2.Token, error) {
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {resource}}
	missing := "no credentials found in the environment, workload identity or managed identity"
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

// authorizeWith reads credentials without connecting, in the same order as Azure's own tools: account key, shared
// access signature, workload identity, client secret, managed identity. If a variable is malformed, the error names
// it.
func authorizeWith(client *wire.Client, account string) error {
	if key := os.Getenv("AZURE_STORAGE_KEY"); key != "" {
		secret, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			return errors.New("AZURE_STORAGE_KEY is not valid base64")
		}
		client.Authorize = (&sharedKey{account: account, secret: secret}).authorize
		return nil
	}
	if signature := strings.TrimSpace(os.Getenv("AZURE_STORAGE_SAS_TOKEN")); signature != "" {
		query, err := url.ParseQuery(strings.TrimPrefix(signature, "?"))
		if err != nil || query.Get("sig") == "" {
			return errors.New("AZURE_STORAGE_SAS_TOKEN is not a valid shared access signature")
		}
		client.Authorize = sharedAccess(query)
		return nil
	}
	tokens := &wire.Tokens{HTTP: wire.IdentityClient(), Find: findSource}
	client.Authorize, client.Expire = tokens.Authorize, tokens.Expire
	return nil
}

// sharedAccess adds the signature to a request's query.
func sharedAccess(signature url.Values) func(*http.Request) error {
	return func(request *http.Request) error {
		query := request.URL.Query()
		for key, values := range signature {
			query[key] = values
		}
		request.URL.RawQuery = query.Encode()
		return nil
	}
}

// sharedKey signs requests with the account key.
type sharedKey struct {
	account string
	secret  []byte
}

func (k *sharedKey) authorize(request *http.Request) error {
	request.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	code := hmac.New(sha256.New, k.secret)
	code.Write([]byte(k.toSign(request)))
	signature := base64.StdEncoding.EncodeToString(code.Sum(nil))
	request.Header.Set("Authorization", "SharedKey "+k.account+":"+signature)
	return nil
}

// toSign returns the string to sign: the method, some headers, all x-ms headers, the path and the query.
func (k *sharedKey) toSign(request *http.Request) string {
	header := request.Header.Get
	length := ""
	if request.ContentLength > 0 {
		length = strconv.FormatInt(request.ContentLength, 10)
	}
	lines := []string{
		request.Method, header("Content-Encoding"), header("Content-Language"), length, header("Content-Md5"),
		header("Content-Type"), "", header("If-Modified-Since"), header("If-Match"), header("If-None-Match"),
		header("If-Unmodified-Since"), header("Range"),
	}
	lines = append(lines, signedLines(request.Header, "x-ms-")...)
	lines = append(lines, "/"+k.account+request.URL.EscapedPath())
	return strings.Join(append(lines, signedLines(request.URL.Query(), "")...), "\n")
}

// signedLines returns a sorted list with one line for each name that starts with prefix.
func signedLines(all map[string][]string, prefix string) (lines []string) {
	for name, values := range all {
		if name = strings.ToLower(name); strings.HasPrefix(name, prefix) {
			slices.Sort(values)
			lines = append(lines, name+":"+strings.Join(values, ","))
		}
	}
	slices.Sort(lines)
	return lines
}
