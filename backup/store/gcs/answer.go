package gcs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// maxJSON limits a response, in bytes; a page of 1,000 objects has 200 KB.
const maxJSON = 4 << 20

// decode parses a response. A lost connection is ErrUnavailable.
func decode(body io.Reader, into any) error {
	text, err := io.ReadAll(io.LimitReader(body, maxJSON))
	if err != nil {
		return err
	}
	if json.Unmarshal(text, into) != nil {
		return errors.New("the response is not the expected JSON")
	}
	return nil
}

// failed adds the operation and the store to an error.
func (s *Store) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", doing, s, err)
}

// codes translates Google's reasons.
var codes = map[string]error{
	"conditionNotMet":       store.ErrExists,
	"notFound":              store.ErrNotFound,
	"retentionPolicyNotMet": store.ErrLocked,
	"objectHeld":            store.ErrLocked,
	"rateLimitExceeded":     store.ErrUnavailable,
	"userRateLimitExceeded": store.ErrUnavailable,
	"backendError":          store.ErrUnavailable,
}

// refusal returns why a request was rejected.
func refusal(response *http.Response) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	_ = decode(response.Body, &body) // the status alone is enough
	answer := wire.ResponseOf(response)
	if len(body.Error.Errors) > 0 {
		answer.Code = body.Error.Errors[0].Reason
	}
	switch message := strings.ToLower(body.Error.Message); {
	case answer.Status == http.StatusForbidden && (strings.Contains(message, "retention") || strings.Contains(message, " hold")):
		answer.Code = "objectHeld" // some holds are only mentioned in the message
	case answer.Status == http.StatusNotFound || answer.Status == http.StatusGone:
		answer.Code = "notFound"
	case answer.Status == http.StatusPreconditionFailed:
		answer.Code = "conditionNotMet"
	}
	return answer.Error(codes)
}
