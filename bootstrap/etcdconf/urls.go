package etcdconf

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

const urlForm = "a URL of the form scheme://host:port (scheme http, https, unix or unixs, no path)"

// checkURLs parses the six lists of URLs, on each of which etcd's reader exits the process if one is malformed.
func (s *settings) checkURLs() error {
	for _, list := range []struct {
		key, value string
		parsed     *[]url.URL
		check      func(key string, u url.URL) error
	}{
		{"listen-peer-urls", s.ListenPeer, &s.ListenPeerUrls, checkListen},
		{"listen-client-urls", s.ListenClient, &s.ListenClientUrls, checkListen},
		{"listen-client-http-urls", s.ListenHTTP, &s.ListenClientHttpUrls, checkListen},
		{"listen-metrics-urls", s.ListenMetricsUrlsJSON, &s.ListenMetricsUrls, checkListen},
		{"initial-advertise-peer-urls", s.AdvertisePeer, &s.AdvertisePeerUrls, checkAdvertise},
		{"advertise-client-urls", s.AdvertiseClient, &s.AdvertiseClientUrls, checkAdvertise},
	} {
		if list.value == "" { // the default stays
			continue
		}
		urls, err := parseURLs(list.key, list.value)
		if err != nil {
			return err
		}
		for _, u := range urls {
			if err := list.check(list.key, u); err != nil {
				return err
			}
		}
		*list.parsed = urls
	}
	return nil
}

func parseURLs(key, list string) (urls []url.URL, err error) {
	for text := range strings.SplitSeq(list, ",") {
		parsed, err := types.NewURLs([]string{text})
		if err != nil { // the cause is dropped: it quotes the URL, password included
			return nil, problem(key, "%s is not %s", quote(text), urlForm)
		}
		urls = append(urls, parsed...)
	}
	return urls, nil
}

// checkListen applies the rule of embed.Config.Validate: a listener is bound to an IP address, not to a name.
func checkListen(key string, u url.URL) error {
	if u.Scheme == "unix" || u.Scheme == "unixs" {
		return nil
	}
	if host := u.Hostname(); host != "localhost" && net.ParseIP(host) == nil {
		return problem(key, "%s must have an IP address or localhost as its host", quote(u.String()))
	}
	return checkPort(key, u)
}

// checkAdvertise applies the rule of embed.Config.Validate: others need a host and a port, or at least the colon.
func checkAdvertise(key string, u url.URL) error {
	if host, _, err := net.SplitHostPort(u.Host); err != nil || host == "" {
		return problem(key, "%s must have a host and a port", quote(u.String()))
	}
	return nil
}

// checkPort wants a port that can be bound; without one the system chooses.
func checkPort(key string, u url.URL) error {
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "0"), 10, 16); err != nil {
		return problem(key, "%s must have a port from 0 to 65535", quote(u.String()))
	}
	return nil
}

// checkListeners refuses one address for two kinds of listeners, which etcd notices only when it starts.
func (s *settings) checkListeners() error {
	for _, u := range s.ListenClientHttpUrls {
		same := func(other url.URL) bool { return other.Host == u.Host && other.Path == u.Path }
		if slices.ContainsFunc(s.ListenClientUrls, same) {
			return problem("listen-client-http-urls", "%s is one of the listen-client-urls too", quote(u.String()))
		}
	}
	return nil
}

// checkOrigins covers a panic: etcd's reader holds a malformed list of origins to be impossible.
func (s *settings) checkOrigins() error {
	if s.Origins == "" || s.Origins == "*" {
		return nil
	}
	_, err := parseURLs("cors", s.Origins)
	return err
}
