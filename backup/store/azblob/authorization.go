package azblob

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/store/wire"
)

// authorizeWith reads credentials from the sources of Azure's own tools: an account key, a shared access signature, workload identity,
// a client secret, managed identity, in this order. It contacts nothing. The error names the malformed variable.
func authorizeWith(client *wire.Client, account string) error {
	if key := os.Getenv("AZURE_STORAGE_KEY"); key != "" {
		secret, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			return errors.New("environment variable AZURE_STORAGE_KEY is not base64")
		}
		client.Authorize = (&sharedKey{account: account, secret: secret}).authorize
		return nil
	}
	if signature := strings.TrimSpace(os.Getenv("AZURE_STORAGE_SAS_TOKEN")); signature != "" {
		query, err := url.ParseQuery(strings.TrimPrefix(signature, "?"))
		if err != nil || query.Get("sig") == "" {
			return errors.New("environment variable AZURE_STORAGE_SAS_TOKEN is not a shared access signature")
		}
		client.Authorize = sharedAccess(query)
		return nil
	}
	tokens := &wire.Tokens{HTTP: wire.IdentityClient(), Find: findSource}
	client.Authorize, client.Expire = tokens.Authorize, tokens.Expire
	return nil
}

// sharedAccess adds the signature to the query.
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

// sharedKey signs requests with the key of the account.
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

// toSign returns the text to sign: method, some headers, all x-ms headers, path and query.
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

// signedLines returns the values whose name starts with prefix, in order.
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
