package azblob

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

const (
	resource = "https://storage.azure.com/"
	// early is the time before the expiry at which a token is replaced.
	early = 5 * time.Minute
)

func findSource(ctx context.Context) (oauth2.TokenSource, error) {
	return oauth2.ReuseTokenSourceWithExpiry(nil, identity{ctx}, early), nil
}

// identity fetches tokens for the workload identity (from the file that Kubernetes renews), for a client secret, or
// for the machine's managed identity. The environment and the file are read again for each token.
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
		return nil, fmt.Errorf("AZURE_TENANT_ID or AZURE_AUTHORITY_HOST is missing or malformed: %w", store.ErrDenied)
	}
	login := clientcredentials.Config{
		ClientID: os.Getenv("AZURE_CLIENT_ID"), ClientSecret: secret, Scopes: []string{resource + ".default"}, EndpointParams: form,
		TokenURL: host.JoinPath(tenant, "oauth2/v2.0/token").String(), AuthStyle: oauth2.AuthStyleInParams,
	}
	return login.Token(i.ctx)
}

// managed fetches a token from the machine's identity endpoint. AZURE_CLIENT_ID selects one if there are multiple
// identities.
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
// access signature, workload identity, client secret, managed identity. The error names the malformed variable.
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

// sharedAccess adds the signature to the query of a request.
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

// toSign returns the text to sign: the method, some headers, all x-ms headers, the path and the query.
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

// signedLines returns one line for each name that starts with prefix, in order.
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
