package bootstrap

import (
	"net/http"
	"net/url"
	"testing"
)

// hangingTransport never returns a response.
type hangingTransport struct{}

func (hangingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// HangingClient returns a client whose sidecar never responds, for use in a synctest bubble.
func HangingClient(*testing.T) *Client {
	return &Client{base: url.URL{Scheme: "http", Host: "sidecar"}, http: &http.Client{Transport: hangingTransport{}}}
}
