package wire

import (
	"errors"
	"net/url"
)

// ParseEndpoint reads http(s)://HOST[:PORT][/PATH]. The error does not repeat the value, which may hold a password.
func ParseEndpoint(value string) (*url.URL, error) {
	endpoint, err := url.Parse(value)
	switch {
	case err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Hostname() == "":
		return nil, errors.New("is not http(s)://HOST[:PORT]")
	case endpoint.User != nil:
		return nil, errors.New("must not hold credentials")
	case endpoint.RawQuery != "" || endpoint.Fragment != "":
		return nil, errors.New("must not have a query")
	default:
		return endpoint, nil
	}
}
