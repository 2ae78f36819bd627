package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	"etcd-wrapper/backup/store"
)

// Bounds of repeating a request.
const (
	attempts  = 3
	firstWait = 200 * time.Millisecond
	// longestWait is the longest wait a request is repeated after; a store that asks for more is left to the caller.
	longestWait = 2 * time.Second
)

// Client sends requests to a store.
type Client struct {
	HTTP *http.Client
	// Authorize adds credentials to a request.
	Authorize func(*http.Request) error
	// Refusal turns an answer that was not accepted into an error. It may read the body, which is short and is closed after.
	Refusal func(*http.Response) error
}

// Do sends a request and returns an answer with one of the accepted statuses; its body must be closed. It sends it up to three
// times, within a few seconds, while the store is unavailable; so it must be safe to repeat. Each time it is built anew. Where
// nothing has moved for as long as the patience it is not repeated: the caller has waited long enough.
func (c *Client) Do(
	ctx context.Context, build func() (*http.Request, error), accepted ...int,
) (response *http.Response, err error) {
	for attempt := range attempts {
		response, err = c.Once(ctx, build, accepted...)
		half := firstWait << attempt / 2
		wait := max(store.RetryAfter(err), half+rand.N(half))
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, errStalled) || attempt == attempts-1 || wait > longestWait {
			return response, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	return response, err
}

// Once is Do without repeating.
func (c *Client) Once(ctx context.Context, build func() (*http.Request, error), accepted ...int) (*http.Response, error) {
	request, err := build()
	if err != nil {
		return nil, err
	}
	request = request.WithContext(ctx)
	if err := c.Authorize(request); err != nil {
		return nil, err
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	if slices.Contains(accepted, response.StatusCode) {
		return response, nil
	}
	defer response.Body.Close()
	return nil, c.Refusal(response)
}

// Unconfirmed is for an answer of success that lacks what the store's own protocol says of an object that it has created: a console, a
// proxy or a captive portal has answered. Nothing is known to be stored.
func Unconfirmed(lacks string) error {
	return &store.Unavailable{Cause: fmt.Errorf("something else than the store has answered (without %s); does endpoint= lead to the store?", lacks)}
}

// Created is how a request to create something in a bucket ended: what can be missing then is the bucket.
func Created(response *http.Response, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w (HTTP status 404)", store.ErrNoBucket)
	}
	if err == nil {
		Discard(response)
	}
	return err
}

// Deleted is how a request to delete an object ended: one that was not there is deleted, too.
func Deleted(response *http.Response, err error) error {
	if err == nil {
		Discard(response)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// Discard ends an answer whose body says nothing of interest, so that its connection can be used again.
func Discard(response *http.Response) {
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // if it fails, the connection is closed
	_ = response.Body.Close()
}

// withoutURL drops the layer of the error that repeats method and URL, which may hold a signature.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
