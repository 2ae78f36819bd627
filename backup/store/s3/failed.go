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

// codes translates S3's error codes.
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
	"XAdminUserNotFound":         store.ErrDenied,      // of versitygw, with 404: unknown access key
	"ConditionalRequestConflict": store.ErrUnavailable, // a concurrent operation on the object
	"OperationAborted":           store.ErrUnavailable,
	"RequestTimeout":             store.ErrUnavailable,
	"BadDigest":                  store.ErrUnavailable, // damaged in transit
	"NoSuchUpload":               store.ErrUnavailable, // completed with the reply lost, or aborted by another process
	"SlowDown":                   store.ErrUnavailable,
	"InternalError":              store.ErrUnavailable,
	"ServiceUnavailable":         store.ErrUnavailable,
}

// call is the context of a method that uses the library.
type call struct {
	store *Store
	ctx   context.Context
	note  *wire.Response // headers of the last response
	// creates means that a 404 is about the bucket.
	creates bool
}

func (s *Store) begin(ctx context.Context) *call {
	note := &wire.Response{}
	return &call{store: s, ctx: wire.WithNote(ctx, note), note: note}
}

// failed translates an error of the library, which contains text from the server.
func (c *call) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	translated := c.translate(err)
	if c.creates && errors.Is(translated, store.ErrNotFound) {
		translated = wire.ErrNoBucket
	}
	if errors.Is(translated, store.ErrDenied) {
		c.store.credentials.Expire() // to search for new ones next time
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
		return c.response(refused).Error(codes)
	default:
		return &store.Unavailable{Cause: errors.New("the response is malformed")}
	}
}

func (c *call) response(refused minio.ErrorResponse) wire.Response {
	answer := *c.note
	answer.Code = refused.Code
	// An error may be in the body of a response with a success status.
	if refused.StatusCode != 0 {
		answer.Status = refused.StatusCode
	}
	if answer.Status == http.StatusForbidden && strings.Contains(strings.ToLower(refused.Message), "object lock") {
		answer.Code = "ObjectLocked" // Amazon returns AccessDenied and mentions the lock in the message only
	}
	return answer
}
