package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// codes are what S3 calls the errors that mean something to package store.
var codes = map[string]error{
	"NoSuchKey":                  store.ErrNotFound,
	"NoSuchBucket":               store.ErrNoBucket,
	"PreconditionFailed":         store.ErrExists,
	"ObjectLocked":               store.ErrLocked,
	"RequestTimeTooSkewed":       store.ErrSkewed,
	"ExpiredToken":               store.ErrDenied,
	"ExpiredTokenException":      store.ErrDenied,
	"InvalidToken":               store.ErrDenied,
	"TokenRefreshRequired":       store.ErrDenied,
	"XAdminUserNotFound":         store.ErrDenied,      // of versitygw, with 404: an access key that it does not know
	"ConditionalRequestConflict": store.ErrUnavailable, // something else was done to the object meanwhile
	"OperationAborted":           store.ErrUnavailable,
	"RequestTimeout":             store.ErrUnavailable,
	"BadDigest":                  store.ErrUnavailable, // damaged on the way
	"NoSuchUpload":               store.ErrUnavailable, // completed with the reply lost, or aborted by somebody
	"SlowDown":                   store.ErrUnavailable,
	"InternalError":              store.ErrUnavailable,
	"ServiceUnavailable":         store.ErrUnavailable,
}

// call is one method's use of the library.
type call struct {
	store *Store
	ctx   context.Context
	note  *wire.Answer // what the last answer's headers said
	// creates means that a 404 is about the bucket.
	creates bool
}

func (s *Store) begin(ctx context.Context) *call {
	note := &wire.Answer{}
	return &call{store: s, ctx: wire.WithNote(ctx, note), note: note}
}

// failed makes an error of the library ours. The library's hold what the server wrote.
func (c *call) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	translated := c.translate(err)
	if c.creates && errors.Is(translated, store.ErrNotFound) {
		translated = wire.ErrNoBucket
	}
	if errors.Is(translated, store.ErrDenied) {
		c.store.credentials.Expire() // to look for new ones the next time
	}
	return fmt.Errorf("%s in %s: %w", doing, c.store, translated)
}

func (c *call) translate(err error) error {
	var (
		refused minio.ErrorResponse
		ours    *store.Unavailable
	)
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, store.ErrDenied):
		return err
	case errors.As(err, &refused):
		return c.answer(refused).Error(codes)
	default:
		return &store.Unavailable{Cause: errors.New("the answer cannot be understood")}
	}
}

func (c *call) answer(refused minio.ErrorResponse) wire.Answer {
	answer := *c.note
	answer.Code = refused.Code
	// An error may come late, in the body of an answer that began as a success.
	if refused.StatusCode != 0 {
		answer.Status = refused.StatusCode
	}
	if answer.Status == http.StatusForbidden && strings.Contains(strings.ToLower(refused.Message), "object lock") {
		answer.Code = "ObjectLocked" // Amazon says AccessDenied and tells it in words only
	}
	return answer
}
