package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/backup/store/wire"
)

// fake is an HTTP handler that records requests and calls reply.
type fake struct {
	mu    sync.Mutex
	asked []*http.Request
	reply func(w http.ResponseWriter, r *http.Request)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(content))
	f.mu.Lock()
	f.asked = append(f.asked, r)
	f.mu.Unlock()
	f.reply(w, r)
}

// find returns the requests with the given method and query key. An empty key selects requests without a query.
func (f *fake) find(method, key string) (found []*http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.asked {
		if r.Method == method && (key == "") == (r.URL.RawQuery == "") && (key == "" || r.URL.Query().Has(key)) {
			found = append(found, r)
		}
	}
	return found
}

func against(t *testing.T, f *fake) *Store {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	return open(t, storetest.Serve(t, f.ServeHTTP), "bucket")
}

// created responds as S3 does after it has created an object.
func created(w http.ResponseWriter, r *http.Request) {
	content, _ := io.ReadAll(r.Body)
	w.Header().Set("ETag", `"`+hexMD5(content)+`"`)
}

func refuse(w http.ResponseWriter, r storetest.ErrorResponse) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(r.Status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s SECRET</Message></Error>", r.Code, r.Message)
}

func TestS3_requestFailures(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "KEY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	refusal := func(status int, code string, want error) storetest.ErrorResponse {
		return storetest.ErrorResponse{Status: status, Code: code, Create: want, Delete: want}
	}
	storetest.RunErrors(t, storetest.Protocol{
		Open: func(t *testing.T, endpoint *url.URL) store.Store {
			s, err := New(wire.Location{Bucket: "bucket", Endpoint: endpoint}, "", true)
			require.NoError(t, err)
			return s
		},
		Created:    created,
		Deleted:    http.StatusNoContent,
		WriteError: refuse,
		Exists:     refusal(412, "PreconditionFailed", store.ErrExists),
		Denied:     refusal(403, "AccessDenied", store.ErrDenied),
		Locked: storetest.ErrorResponse{
			Status: 403, Code: "AccessDenied", Message: "Access Denied because object protected by object lock.",
			Create: store.ErrExists, Delete: store.ErrLocked,
		},
		NoBucket: storetest.ErrorResponse{Status: 404, Code: "NoSuchBucket"},
		Others: []storetest.ErrorResponse{
			refusal(409, "ConditionalRequestConflict", store.ErrUnavailable), // another process deleted the object in the meantime
			refusal(429, "TooManyRequests", store.ErrUnavailable),
			refusal(500, "InternalError", store.ErrUnavailable),
			refusal(503, "SlowDown", store.ErrUnavailable),
			refusal(400, "ExpiredToken", store.ErrDenied),
			refusal(403, "InvalidAccessKeyId", store.ErrDenied),
			refusal(403, "SignatureDoesNotMatch", store.ErrDenied),
			refusal(403, "RequestTimeTooSkewed", store.ErrSkewed),
			refusal(404, "NoSuchBucket", store.ErrNoBucket),
			refusal(404, "XAdminUserNotFound", store.ErrDenied),
		},
		Page: "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>" +
			"<Contents><Key>a</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>",
	})
}

// multipart returns a server that responds like S3, except that complete responds to the last request of an upload.
func multipart(complete func(w http.ResponseWriter)) *fake {
	return &fake{reply: func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("uploads"):
			fmt.Fprint(w, "<InitiateMultipartUploadResult><UploadId>U1</UploadId></InitiateMultipartUploadResult>")
		case r.URL.Query().Has("partNumber"):
			created(w, r)
		case r.Method == http.MethodPost:
			complete(w)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		default:
			created(w, r)
		}
	}}
}

const large = wire.PieceSize + 1

func TestEveryRequestThatCreatesIsConditional(t *testing.T) {
	content, err := io.ReadAll(storetest.Pattern(1, large))
	require.NoError(t, err)
	f := multipart(func(w http.ResponseWriter) {
		var sums []byte
		for _, piece := range [][]byte{content[:wire.PieceSize], content[wire.PieceSize:]} {
			sum := md5.Sum(piece)
			sums = append(sums, sum[:]...)
		}
		fmt.Fprintf(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><ETag>&quot;%s-2&quot;</ETag></CompleteMultipartUploadResult>", hexMD5(sums))
	})
	s := against(t, f)
	require.NoError(t, s.Put(t.Context(), "large", storetest.Pattern(1, large)))
	completed := f.find(http.MethodPost, "uploadId")
	require.Len(t, completed, 1)
	assert.Equal(t, "*", completed[0].Header.Get("If-None-Match"))
	parts := f.find(http.MethodPut, "partNumber")
	require.Len(t, parts, 2)
	require.NoError(t, s.Put(t.Context(), "small", strings.NewReader("x")))
	puts := f.find(http.MethodPut, "")
	require.Len(t, puts, 1)
	assert.Equal(t, "*", puts[0].Header.Get("If-None-Match"))
	for _, put := range append(parts, puts...) {
		assert.NotEmpty(t, put.Header.Get("Content-Md5"), "buckets with object lock require an MD5")
		assert.Len(t, put.Header.Get("X-Amz-Content-Sha256"), 64)
	}
}

func TestAnUploadThatCannotBeCompletedIsAborted(t *testing.T) {
	for status, want := range map[int]error{
		200: store.ErrUnavailable, 409: store.ErrUnavailable, 412: store.ErrExists, 403: store.ErrDenied,
	} {
		f := multipart(func(w http.ResponseWriter) {
			code := map[int]string{200: "InternalError", 409: "ConditionalRequestConflict", 412: "PreconditionFailed", 403: "AccessDenied"}
			refuse(w, storetest.ErrorResponse{Status: status, Code: code[status]})
		})
		err := against(t, f).Put(t.Context(), "large", storetest.Pattern(1, large))
		assert.ErrorIs(t, err, want, status)
		if status == http.StatusOK {
			assert.ErrorContains(t, err, "the server could not complete the upload")
		}
		assert.Len(t, f.find(http.MethodDelete, "uploadId"), 1)
	}
}

// Put must abort a failed upload, because S3 charges for its parts until it is aborted.
func TestAnUploadThatEndsEarlyIsAborted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, one := range map[string]struct {
		ctx     context.Context
		content io.Reader
		refuse  bool // reject the second part
		want    error
	}{
		"unreadable content": {t.Context(), io.MultiReader(storetest.Pattern(1, large), iotest.ErrReader(io.ErrUnexpectedEOF)), false, io.ErrUnexpectedEOF},
		"canceled context":   {ctx, io.MultiReader(storetest.Pattern(1, large), storetest.Broken(func() error { cancel(); return io.EOF })), false, context.Canceled},
		"rejected part":      {t.Context(), storetest.Pattern(1, 2*large), true, store.ErrDenied},
	} {
		parts := 0
		complete := multipart(func(http.ResponseWriter) { t.Error("an interrupted upload must not be completed: " + name) })
		f := &fake{reply: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("partNumber") {
				if parts++; one.refuse && parts == 2 {
					refuse(w, storetest.ErrorResponse{Status: http.StatusForbidden, Code: "AccessDenied"})
					return
				}
			}
			complete.reply(w, r)
		}}
		assert.ErrorIs(t, against(t, f).Put(one.ctx, "large", one.content), one.want, name)
		aborted := f.find(http.MethodDelete, "uploadId")
		if assert.Len(t, aborted, 1, name) {
			assert.Equal(t, "U1", aborted[0].URL.Query().Get("uploadId"))
		}
	}
}

func TestAbandonedUploadsAreAborted(t *testing.T) {
	now := time.Now()
	f := &fake{reply: func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		fmt.Fprint(w, "<ListMultipartUploadsResult><Bucket>bucket</Bucket>")
		for id, age := range map[string]time.Duration{"old": 25 * time.Hour, "young": 23 * time.Hour} {
			fmt.Fprintf(w, "<Upload><Key>%s%s</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>",
				"prefix/", id, id, now.Add(-age).UTC().Format(time.RFC3339))
		}
		fmt.Fprint(w, "</ListMultipartUploadsResult>")
	}}
	removed, err := store.Sweep(t.Context(), against(t, f))
	require.NoError(t, err)
	assert.Equal(t, 1, removed)
	require.Len(t, f.find(http.MethodDelete, "uploadId"), 1)
	assert.Equal(t, "old", f.find(http.MethodDelete, "uploadId")[0].URL.Query().Get("uploadId"))
	assert.Equal(t, awkward, f.find(http.MethodGet, "uploads")[0].URL.Query().Get("prefix"), "list only own uploads")
}

// If the ETag is not an MD5, as in a bucket encrypted with a customer key, Put must inspect the stored object.
func TestPut_confirmsUnknownETag(t *testing.T) {
	size := "1"
	f := &fake{reply: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"0123456789abcdef0123456789abcdef"`)
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", size)
		}
	}}
	s := against(t, f)
	require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
	assert.Len(t, f.find(http.MethodHead, ""), 1)
	size = "2"
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	require.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorContains(t, err, "the response is not from the store")
}

// Requests to Amazon must use the hostname for the bucket's region, and the region must be part of the signature.
func TestAmazon_usesRegionOfBucket(t *testing.T) {
	for name, one := range map[string]struct {
		bucket    string
		region    string // configured region
		returned  string // region that Amazon returns
		pathStyle bool
		want      []string // requests, each with the region in its signature
	}{
		"configured region": {"bucket", "eu-west-1", "", false, []string{"DELETE bucket.s3.dualstack.eu-west-1.amazonaws.com/a eu-west-1", "DELETE bucket.s3.dualstack.eu-west-1.amazonaws.com/a eu-west-1"}},
		"returned region": {"bucket", "", "eu-west-1", false, []string{
			"HEAD bucket.s3.amazonaws.com/ us-east-1", "DELETE bucket.s3.dualstack.eu-west-1.amazonaws.com/a eu-west-1",
			"DELETE bucket.s3.dualstack.eu-west-1.amazonaws.com/a eu-west-1",
		}},
		"unknown":     {"bucket", "", "", false, []string{"HEAD bucket.s3.amazonaws.com/ us-east-1", "HEAD bucket.s3.amazonaws.com/ us-east-1"}},
		"China":       {"bucket", "cn-north-1", "", false, []string{"DELETE bucket.s3.dualstack.cn-north-1.amazonaws.com.cn/a cn-north-1", "DELETE bucket.s3.dualstack.cn-north-1.amazonaws.com.cn/a cn-north-1"}},
		"path style":  {"bucket", "eu-west-1", "", true, []string{"DELETE s3.dualstack.eu-west-1.amazonaws.com/bucket/a eu-west-1", "DELETE s3.dualstack.eu-west-1.amazonaws.com/bucket/a eu-west-1"}},
		"dotted name": {"a.bucket", "eu-west-1", "", false, []string{"DELETE s3.dualstack.eu-west-1.amazonaws.com/a.bucket/a eu-west-1", "DELETE s3.dualstack.eu-west-1.amazonaws.com/a.bucket/a eu-west-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "KEY")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
			s, err := New(wire.Location{Bucket: one.bucket}, one.region, one.pathStyle)
			require.NoError(t, err)
			var asked []string
			s.HTTP = storetest.NewRedirectClient(t, func(w http.ResponseWriter, r *http.Request) {
				scope := strings.Split(r.Header.Get("Authorization"), "/")
				asked = append(asked, r.Method+" "+r.Host+r.URL.Path+" "+scope[2])
				w.Header().Set("X-Amz-Bucket-Region", one.returned)
				w.WriteHeader(map[string]int{http.MethodHead: http.StatusForbidden, http.MethodDelete: http.StatusNoContent}[r.Method])
			})
			for range 2 {
				if err = s.Delete(t.Context(), "a"); name == "unknown" {
					assert.ErrorIs(t, err, store.ErrDenied)
					assert.ErrorContains(t, err, "set region= or AWS_REGION")
				} else {
					assert.NoError(t, err)
				}
			}
			assert.Equal(t, one.want, asked)
		})
	}
}

func TestList_endsWithThePageThatIsNotTruncated(t *testing.T) {
	f := &fake{}
	f.reply = func(w http.ResponseWriter, _ *http.Request) {
		token := "<NextContinuationToken>again</NextContinuationToken>"
		if len(f.find(http.MethodGet, "list-type")) > 1 {
			token = ""
		}
		fmt.Fprintf(w, "<ListBucketResult><IsTruncated>false</IsTruncated>%s</ListBucketResult>", token)
	}
	for _, err := range against(t, f).List(t.Context(), "", "") {
		require.NoError(t, err)
	}
	assert.Len(t, f.find(http.MethodGet, "list-type"), 1)
}

// awkward is a prefix with characters that must be escaped in URLs or signatures.
const awkward = "pre fix/ü+%41&=;@:#/"

func TestS3KeepsTheContractOnAServer(t *testing.T) {
	endpoint := servers.S3(t)
	bucket := &buckets{}
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return bucket.next(t, endpoint) },
		Server: endpoint,
		Through: func(t *testing.T, proxied *url.URL) store.Store {
			return opened(t, proxied, bucket.next(t, endpoint).bucket)
		},
		Missing: func(t *testing.T) store.Store { return opened(t, endpoint, "missing") },
		Denied: func(t *testing.T) store.Store {
			existing := bucket.next(t, endpoint).bucket
			t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
			return open(t, endpoint, existing)
		},
	})
}

type buckets struct{ made int }

// next creates a bucket.
func (b *buckets) next(t *testing.T, endpoint *url.URL) *Store {
	b.made++
	s := opened(t, endpoint, "bucket-"+string(rune('a'+b.made)))
	require.NoError(t, client(t, endpoint).MakeBucket(t.Context(), s.bucket, minio.MakeBucketOptions{}))
	return s
}

// client returns a MinIO client, an independent implementation of the protocol.
func client(t *testing.T, endpoint *url.URL) *minio.Core {
	core, err := minio.NewCore(endpoint.Host, &minio.Options{Creds: credentials.NewStaticV4(servers.S3Access, servers.S3Secret, "")})
	require.NoError(t, err)
	return core
}

// opened returns a store that authenticates with the server's keys.
func opened(t *testing.T, endpoint *url.URL, bucket string) *Store {
	t.Setenv("AWS_SECRET_ACCESS_KEY", servers.S3Secret)
	return open(t, endpoint, bucket)
}

func open(t *testing.T, endpoint *url.URL, bucket string) *Store {
	t.Setenv("AWS_ACCESS_KEY_ID", servers.S3Access)
	s, err := New(wire.Location{Bucket: bucket, Prefix: awkward, Endpoint: endpoint}, "", true)
	require.NoError(t, err)
	return s
}

func TestAbandonedUploadsAreAbortedOnAServer(t *testing.T) {
	endpoint := servers.S3(t)
	s, core := (&buckets{}).next(t, endpoint), client(t, endpoint)
	left := func(key string) {
		id, err := core.NewMultipartUpload(t.Context(), s.bucket, key, minio.PutObjectOptions{})
		require.NoError(t, err)
		_, err = core.PutObjectPart(t.Context(), s.bucket, key, id, 1, strings.NewReader("part"), 4, minio.PutObjectPartOptions{})
		require.NoError(t, err)
	}
	left(awkward + "gen/000001/full/a/data")
	left("other prefix/data")
	removed, err := store.Sweep(t.Context(), s)
	require.NoError(t, err)
	require.Zero(t, removed, "a recent upload may belong to a slow writer")
	removed, err = s.sweep(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	removed, err = s.sweep(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, removed, "uploads under other prefixes must remain")
}

func TestLockedBucket_onAServer(t *testing.T) {
	endpoint := servers.S3(t)
	s, core := opened(t, endpoint, "locked"), client(t, endpoint)
	require.NoError(t, core.MakeBucket(t.Context(), s.bucket, minio.MakeBucketOptions{ObjectLocking: true}))
	mode, validity, unit := minio.Governance, uint(1), minio.Days
	require.NoError(t, core.SetBucketObjectLockConfig(t.Context(), s.bucket, &mode, &validity, &unit))
	abilities, err := store.Probe(t.Context(), s)
	require.NoError(t, err)
	require.True(t, abilities.CreateIfAbsent)
	require.ErrorIs(t, abilities.Delete, store.ErrLocked)
	for range 2 {
		_, err = store.PutOnce(t.Context(), s, "a", strings.NewReader("x"))
		require.NoError(t, err)
	}
	_, err = store.PutOnce(t.Context(), s, "a", strings.NewReader("y"))
	require.ErrorIs(t, err, store.ErrExists)
	require.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrLocked)
}
