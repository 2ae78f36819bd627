package backups_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
)

// A cloud is a kind of object store that tests run on a local server.
type cloud struct {
	server      func(t *testing.T) *url.URL
	bucket      func(t *testing.T, endpoint *url.URL, name string) // creates a bucket
	url         string                                             // format of the --backup-store URL
	credentials []string                                           // environment variables for the program
}

var clouds = map[string]cloud{
	"s3": {
		servers.S3, servers.MakeS3Bucket, "s3://%s/main?path-style=true&region=us-east-1&endpoint=%s",
		servers.S3Env(),
	},
	"gs": {servers.GCS, makeGCSBucket, "gs://%s/main?endpoint=%s", nil}, // the fake server requires no credentials
	"azblob": {
		servers.Azure, makeAzureContainer, "azblob://%s/main?account=" + servers.AzureAccount + "&endpoint=%s",
		[]string{"AZURE_STORAGE_KEY=" + servers.AzureKey},
	},
}

// onEachCloud runs a test in parallel for each cloud.
func onEachCloud(t *testing.T, test func(t *testing.T, c cloud)) {
	for name, c := range clouds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// A service is a running object store server behind a proxy that injects faults.
type service struct {
	cloud
	endpoint *url.URL
	proxy    *storetest.Proxy
}

func (c cloud) start(t *testing.T) *service {
	t.Helper()
	return (&service{cloud: c, endpoint: c.server(t)}).withNewProxy(t)
}

// withNewProxy returns the same server behind another proxy, whose faults do not affect the users of the first one.
func (s *service) withNewProxy(t *testing.T) *service {
	t.Helper()
	return &service{cloud: s.cloud, endpoint: s.endpoint, proxy: storetest.NewProxy(t, s.endpoint)}
}

// depot returns a depot in a bucket, which need not exist yet. The program connects to it through the proxy.
func (s *service) depot(bucket string) depot {
	to := func(endpoint *url.URL) string { return fmt.Sprintf(s.url, bucket, url.QueryEscape(endpoint.String())) }
	return depot{url: to(s.endpoint), proxied: to(s.proxy.Endpoint)}
}

func (s *service) make(t *testing.T, bucket string) {
	t.Helper()
	s.bucket(t, s.endpoint, bucket)
}

// member returns a member whose backups are stored in the bucket.
func (s *service) member(t *testing.T, bucket string, flags ...string) *member {
	t.Helper()
	m := newMemberOn(t, s.depot(bucket), flags...)
	m.Env = s.credentials
	return m
}

func makeGCSBucket(t *testing.T, endpoint *url.URL, name string) {
	t.Helper()
	target, bucket := endpoint.JoinPath("storage/v1/b").String()+"?project=test", fmt.Sprintf(`{"name":%q}`, name)
	created, err := http.Post(target, "application/json", strings.NewReader(bucket))
	require.NoError(t, err)
	require.NoError(t, created.Body.Close())
	require.Equal(t, http.StatusOK, created.StatusCode)
}

func makeAzureContainer(t *testing.T, endpoint *url.URL, name string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, endpoint.JoinPath(name).String()+"?restype=container", nil)
	require.NoError(t, err)
	sign(t, request)
	created, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, created.Body.Close())
	require.Equal(t, http.StatusCreated, created.StatusCode)
}

// sign adds Azure's Shared Key signature to the request that creates a container, which has no body.
func sign(t *testing.T, request *http.Request) {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(servers.AzureKey)
	require.NoError(t, err)
	request.Header.Set("x-ms-date", time.Now().UTC().Format(http.TimeFormat))
	request.Header.Set("x-ms-version", "2021-12-02")
	digest := hmac.New(sha256.New, key)
	fmt.Fprintf(digest, "PUT%sx-ms-date:%s\nx-ms-version:%s\n/%s%s\nrestype:container", strings.Repeat("\n", 12),
		request.Header.Get("x-ms-date"), request.Header.Get("x-ms-version"), servers.AzureAccount, request.URL.Path)
	request.Header.Set("Authorization", "SharedKey "+servers.AzureAccount+":"+base64.StdEncoding.EncodeToString(digest.Sum(nil)))
}
