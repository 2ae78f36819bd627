package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/wire"
)

// fake answers as a test wants it to, and notes what was asked.
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

// find returns the requests with a method whose query has a key.
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
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	endpoint, err := url.Parse(server.URL)
	require.NoError(t, err)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	return open(t, endpoint, "bucket")
}

// created answers as S3 does to an object that was put.
func created(w http.ResponseWriter, r *http.Request) {
	content, _ := io.ReadAll(r.Body)
	w.Header().Set("ETag", `"`+hexMD5(content)+`"`)
}

func refusing(status int, code, message string) *fake {
	return &fake{reply: func(w http.ResponseWriter, _ *http.Request) { refuse(w, status, code, message) }}
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s SECRET</Message></Error>", code, message)
}

// multipart answers like S3, until parts are put together, which complete answers.
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
		assert.NotEmpty(t, put.Header.Get("Content-Md5"), "which object lock insists on")
		assert.Len(t, put.Header.Get("X-Amz-Content-Sha256"), 64)
	}
}

func TestWhatS3AnswersBecomesAnErrorWithoutItsWords(t *testing.T) {
	var all sync.WaitGroup // they wait between attempts
	defer all.Wait()
	for _, one := range []struct {
		status        int
		code, message string
		want          error
	}{
		{412, "PreconditionFailed", "", store.ErrExists},
		{409, "ConditionalRequestConflict", "", store.ErrUnavailable},
		{429, "TooManyRequests", "", store.ErrUnavailable},
		{500, "InternalError", "", store.ErrUnavailable},
		{503, "SlowDown", "", store.ErrUnavailable},
		{400, "ExpiredToken", "", store.ErrDenied},
		{403, "InvalidAccessKeyId", "", store.ErrDenied},
		{403, "SignatureDoesNotMatch", "", store.ErrDenied},
		{403, "AccessDenied", "", store.ErrDenied},
		{403, "AccessDenied", "Access Denied because object protected by object lock.", store.ErrLocked},
		{403, "RequestTimeTooSkewed", "", store.ErrSkewed},
		{404, "NoSuchBucket", "", store.ErrNoBucket},
		{404, "XAdminUserNotFound", "", store.ErrDenied},
		{501, "NotImplemented", "", nil},
	} {
		s := against(t, refusing(one.status, one.code, one.message))
		all.Go(func() {
			for _, err := range []error{s.Put(t.Context(), "a", strings.NewReader("x")), s.Delete(t.Context(), "a")} {
				if one.want != nil {
					assert.ErrorIs(t, err, one.want, one)
				}
				assert.ErrorContains(t, err, "HTTP status")
				assert.NotContains(t, err.Error(), "SECRET")
			}
		})
	}
}

func TestAnUploadThatCannotBeCompletedIsAborted(t *testing.T) {
	for status, want := range map[int]error{
		200: store.ErrUnavailable, 409: store.ErrUnavailable, 412: store.ErrExists, 403: store.ErrDenied,
	} {
		f := multipart(func(w http.ResponseWriter) {
			code := map[int]string{200: "InternalError", 409: "ConditionalRequestConflict", 412: "PreconditionFailed", 403: "AccessDenied"}
			refuse(w, status, code[status], "")
		})
		assert.ErrorIs(t, against(t, f).Put(t.Context(), "large", storetest.Pattern(1, large)), want, status)
		assert.Len(t, f.find(http.MethodDelete, "uploadId"), 1)
	}
}

// The parts of an upload that is not aborted cost money forever.
func TestAnUploadThatEndsEarlyIsAborted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, one := range map[string]struct {
		ctx     context.Context
		content io.Reader
		refuse  bool
		want    error
	}{
		"content that cannot be read": {t.Context(), io.MultiReader(storetest.Pattern(1, large), iotest.ErrReader(io.ErrUnexpectedEOF)), false, io.ErrUnexpectedEOF},
		"the end of the context":      {ctx, io.MultiReader(storetest.Pattern(1, large), storetest.AtEnd(cancel)), false, context.Canceled},
		"a part that is refused":      {t.Context(), storetest.Pattern(1, 2*large), true, store.ErrDenied},
	} {
		parts := 0
		complete := multipart(func(http.ResponseWriter) { t.Error("completed after " + name) })
		f := &fake{reply: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("partNumber") {
				if parts++; one.refuse && parts == 2 {
					refuse(w, http.StatusForbidden, "AccessDenied", "")
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

func TestRetryAfterIsPassedOn(t *testing.T) {
	f := &fake{reply: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "17")
		refuse(w, http.StatusServiceUnavailable, "SlowDown", "")
	}}
	assert.Equal(t, 17*time.Second, store.RetryAfter(against(t, f).Put(t.Context(), "a", strings.NewReader("x"))))
}

func TestAnAnswerThatIsNotS3sIsNoSuccess(t *testing.T) {
	f := &fake{reply: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>SECRET</html>") }}
	s := against(t, f)
	var all []error
	for _, err := range s.List(t.Context(), "", "") {
		all = append(all, err)
	}
	require.Len(t, all, 1)
	assert.ErrorIs(t, all[0], store.ErrUnavailable)
	assert.ErrorContains(t, all[0], "the response is not a listing of S3")
	assert.NotContains(t, all[0].Error(), "SECRET")
	_, err := s.Get(t.Context(), "a", 5, 5)
	assert.ErrorIs(t, err, store.ErrUnavailable, "it ignores ranges, and has no ETag")
}

func TestUploadsThatNobodyGoesOnWithAreAborted(t *testing.T) {
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
	assert.Equal(t, awkward, f.find(http.MethodGet, "uploads")[0].URL.Query().Get("prefix"), "others' are left alone")
}

// A bucket that encrypts with its own key has ETags that are no MD5; then the object itself is checked.
func TestAnETagThatIsNoMD5IsLookedUp(t *testing.T) {
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
	assert.ErrorContains(t, err, "another server than the store responded")
}
