package locate

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpen_doesNotConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		if connection, err := listener.Accept(); err == nil {
			t.Error("Open must not connect")
			_ = connection.Close()
		}
	}()
	at := "endpoint=http://" + listener.Addr().String()
	t.Setenv("AZURE_STORAGE_ACCOUNT", "devaccount")
	for raw, want := range map[string]string{
		"file:///var/backups/": "file:///var/backups",
		"s3://bucket":          "s3://bucket/",
		"s3://bucket/":         "s3://bucket/",
		"s3://bucket/a/b?region=eu-central-1&" + at:      "s3://bucket/a/b/",
		"s3://bucket/with%20space?path-style=true":       "s3://bucket/with space/",
		"s3://bucket/p?path-style=false":                 "s3://bucket/p/",
		"gs://bucket_1/a?" + at:                          "gs://bucket_1/a/",
		"azblob://container/a/?account=acc0unt&" + at:    "azblob://container/a/",
		"azblob://container?endpoint=http://h:1/acc0unt": "azblob://container/",
	} {
		s, err := Open(raw)
		if assert.NoError(t, err, raw) {
			assert.Equal(t, want, s.String())
		}
	}
}

func TestOpen_invalidURL(t *testing.T) {
	t.Setenv("AZURE_STORAGE_ACCOUNT", "")
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(notPEM, []byte("no certificate"), 0o600))
	long := strings.Repeat("a", 256)
	for raw, want := range map[string]string{
		"":                                      "must be azblob://CONTAINER/PREFIX, file:///DIR",
		" s3://bucket":                          "has leading or trailing whitespace",
		"s3://bucket/etcd\n":                    "has leading or trailing whitespace",
		"ftp://host/dir":                        "must be azblob://CONTAINER/PREFIX, file:///DIR",
		"/var/backups":                          "is a path; use file:///var/backups",
		"s3:bucket":                             "must be azblob://CONTAINER/PREFIX, file:///DIR",
		"s3://bu cket/%zz":                      "must be azblob://CONTAINER/PREFIX, file:///DIR",
		"file://backups":                        "three slashes",
		"file:///":                              `invalid directory "/": must be an absolute path other than /`,
		"file:///%00":                           "invalid directory: must have at most 4095 bytes, at most 255 between slashes, and no NUL byte",
		"file:///a/" + long:                     "invalid directory: must have at most 4095 bytes, at most 255 between slashes, and no NUL byte",
		"file:///" + strings.Repeat("a/", 2100): "invalid directory: must have at most 4095 bytes, at most 255 between slashes, and no NUL byte",
		"file:///dir?region=x":                  `file:// does not support key "region"`,
		"s3://":                                 `invalid bucket name ""`,
		"s3:///prefix":                          `invalid bucket name ""`,
		"s3://Bucket_/x":                        `invalid bucket name "Bucket_"`,
		"s3://bucket?acount=x":                  `s3:// does not support key "acount"; supported: endpoint, region, path-style, ca`,
		"s3://bucket?region=a&region=b":         "duplicate key region",
		"s3://bucket?region=":                   "key region is empty",
		"s3://bucket?path-style=yes":            "key path-style must be true or false",
		"s3://bucket?endpoint=minio:9000":       "key endpoint must be http(s)://HOST[:PORT]",
		"s3://bucket?endpoint=https://h/bucket": "key endpoint must not include a path",
		"s3://bucket?endpoint=https://h/?x=1":   "key endpoint must not contain a query",
		"s3://bucket/a//b":                      "must not contain the segments ., .. or an empty one",
		"s3://bucket/../b":                      "must not contain the segments ., .. or an empty one",
		"s3://bucket/a%00b":                     "control characters",
		"s3://bucket?ca=/no/such/file":          "no such file",
		"s3://bucket?ca=" + notPEM:              "contains no certificates",
		"s3://bucket?a;b":                       "malformed",
		"gs://b":                                `invalid bucket name "b"`,
		"gs://bucket?account=x":                 `gs:// does not support key "account"`,
		"azblob://container":                    "AZURE_STORAGE_ACCOUNT",
		"azblob://c?account=acc0unt":            `invalid container name "c"`,
		"azblob://container?account=not-a-name": "invalid storage account name",
		"azblob://container?account=a&region=x": `azblob:// does not support key "region"`,
	} {
		_, err := Open(raw)
		if assert.Error(t, err, raw) {
			assert.Contains(t, err.Error(), want, raw)
			assert.True(t, strings.HasPrefix(err.Error(), "--backup-store: "), err)
			assert.NotContains(t, err.Error(), "\n")
		}
	}
}

func TestOpen_errorsHideSecrets(t *testing.T) {
	for _, raw := range []string{
		"s3://key:SECRET@bucket/x", "s3://bucket?endpoint=https://user:SECRET@host", "s3://bucket?endpoint=SECRET",
		"s3://bucket?endpoint=https://h/%25zz?sig=SECRET", "s3://bucket/%zzSECRET", "s3://bucket?path-style=SECRET",
		"azblob://container?account=acc0unt&sig=SECRET", "gs://bucket?endpoint=ftp://SECRET", "https://SECRET@host",
	} {
		_, err := Open(raw)
		if assert.Error(t, err, raw) {
			assert.NotContains(t, err.Error(), "SECRET", raw)
		}
	}
}

func TestOpen_malformedEnvironment(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "https://user:SECRET@host/")
	_, err := Open("s3://bucket")
	assert.EqualError(t, err, "--backup-store: AWS_ENDPOINT_URL must be http(s)://HOST[:PORT]")
	t.Setenv("AZURE_STORAGE_KEY", "SECRET !")
	_, err = Open("azblob://container?account=acc0unt")
	assert.EqualError(t, err, "--backup-store: AZURE_STORAGE_KEY is not valid base64")
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "SECRET")
	_, err = Open("azblob://container?account=acc0unt")
	assert.EqualError(t, err, "--backup-store: AZURE_STORAGE_SAS_TOKEN is not a valid shared access signature")
}
