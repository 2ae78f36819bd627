package bootstrap

import (
	"net/http"
	"net/url"
	"testing"
)

// hangs is a transport that never responds.
type hangs struct{}

func (hangs) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// ClientThatHangs returns a client whose sidecar never responds, for use in a synctest bubble.
func ClientThatHangs(*testing.T) *Client {
	return &Client{base: url.URL{Scheme: "http", Host: "sidecar"}, http: &http.Client{Transport: hangs{}}}
}
