package etcdconf

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/internal/disk"
)

const urlForm = "a URL of the form scheme://host:port (scheme: http, https, unix or unixs; no path)"

// checkURLs parses the six lists of URLs, because etcd's own parser exits the process on a malformed URL.
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
		if list.value == "" { // keep the default
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
		if err != nil { // err is not returned, because it would expose the password in the URL
			return nil, keyErrorf(key, "%s is not %s", quote(text), urlForm)
		}
		urls = append(urls, parsed...)
	}
	return urls, nil
}

// checkListen applies the same rule as embed.Config.Validate: listeners bind to an IP address, not to a name.
func checkListen(key string, u url.URL) error {
	if u.Scheme == "unix" || u.Scheme == "unixs" {
		return nil
	}
	if host := u.Hostname(); host != "localhost" && net.ParseIP(host) == nil {
		return keyErrorf(key, "host of %s must be an IP address or localhost", quote(u.String()))
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "0"), 10, 16); err != nil { // without a port, the system picks one
		return keyErrorf(key, "port of %s must be between 0 and 65535", quote(u.String()))
	}
	return nil
}

// checkAdvertise applies the same rule as embed.Config.Validate: advertised URLs need a host and a colon, but the
// port after the colon may be empty.
func checkAdvertise(key string, u url.URL) error {
	if host, _, err := net.SplitHostPort(u.Host); err != nil || host == "" {
		return keyErrorf(key, "%s must have a host and a port", quote(u.String()))
	}
	return nil
}

// checkListeners returns an error if listen-client-http-urls and listen-client-urls share an address, which etcd
// notices only at startup.
func (s *settings) checkListeners() error {
	for _, u := range s.ListenClientHttpUrls {
		same := func(other url.URL) bool { return other.Host == u.Host && other.Path == u.Path }
		if slices.ContainsFunc(s.ListenClientUrls, same) {
			return keyErrorf("listen-client-http-urls", "%s is already in listen-client-urls", quote(u.String()))
		}
	}
	return nil
}

// CheckPort returns an error if a listener uses the port of the wrapper's own server, which is already listening
// when etcd starts.
func (c *Checked) CheckPort(own uint16) error {
	for key, urls := range map[string][]url.URL{
		"listen-client-urls": c.Etcd.ListenClientUrls, "listen-peer-urls": c.Etcd.ListenPeerUrls,
		"listen-client-http-urls": c.Etcd.ListenClientHttpUrls, "listen-metrics-urls": c.Etcd.ListenMetricsUrls,
	} {
		for _, u := range urls {
			if u.Port() == strconv.Itoa(int(own)) {
				return keyErrorf(key, "%s uses the port of the wrapper's own server; change the URL or --etcd-wrapper-port (default 9095)", quote(u.String()))
			}
		}
	}
	return nil
}

// checkCORS prevents etcd from panicking on malformed origins.
func (s *settings) checkCORS() error {
	if s.Origins == "" || s.Origins == "*" {
		return nil
	}
	_, err := parseURLs("cors", s.Origins)
	return err
}

// Names of the TLS sections.
const (
	clientSection = "client-transport-security"
	peerSection   = "peer-transport-security"
)

// security holds the keys of client-transport-security and peer-transport-security.
type security struct {
	CertFile         string   `json:"cert-file"`
	KeyFile          string   `json:"key-file"`
	ClientCertFile   string   `json:"client-cert-file"`
	ClientKeyFile    string   `json:"client-key-file"`
	ClientCertAuth   bool     `json:"client-cert-auth"`
	TrustedCAFile    string   `json:"trusted-ca-file"`
	AutoTLS          bool     `json:"auto-tls"`
	AllowedCNs       []string `json:"allowed-cn"`
	AllowedHostnames []string `json:"allowed-hostname"`
	SkipSANCheck     bool     `json:"skip-client-san-verification"`
}

// checkClientSecurity checks the section only if a client listener uses TLS, because etcd ignores it otherwise.
func (s *settings) checkClientSecurity() error {
	inUse := false
	for _, listener := range []struct {
		key  string
		urls []url.URL
	}{
		{"listen-client-urls", s.ListenClientUrls},
		{"listen-client-http-urls", s.ListenClientHttpUrls},
		{"listen-metrics-urls", s.ListenMetricsUrls},
	} {
		if err := s.ClientSecurity.checkRequired(clientSection, listener.key, listener.urls); err != nil {
			return err
		}
		inUse = inUse || slices.ContainsFunc(listener.urls, UsesTLS)
	}
	if inUse {
		return s.ClientSecurity.check(clientSection)
	}
	if s.ClientSecurity.CertFile+s.ClientSecurity.KeyFile+s.ClientSecurity.TrustedCAFile != "" || s.ClientSecurity.ClientCertAuth {
		s.warnings = append(s.warnings, clientSection+" has no effect because no client listener uses TLS")
	}
	return nil
}

// checkPeerSecurity always checks the CA bundle, because etcd uses it for connections to peers even if no listener
// uses TLS.
func (s *settings) checkPeerSecurity() error {
	if err := s.PeerSecurity.checkRequired(peerSection, "listen-peer-urls", s.ListenPeerUrls); err != nil {
		return err
	}
	if s.PeerSecurity.CertFile+s.PeerSecurity.KeyFile != "" || slices.ContainsFunc(s.ListenPeerUrls, UsesTLS) {
		return s.PeerSecurity.check(peerSection)
	}
	return s.PeerSecurity.checkCA(peerSection)
}

// checkRequired requires a certificate if one of the URLs uses TLS. etcd reports a missing certificate only when it
// opens the listener.
func (t security) checkRequired(section, key string, urls []url.URL) error {
	if t.CertFile != "" || t.KeyFile != "" || t.AutoTLS || !slices.ContainsFunc(urls, UsesTLS) {
		return nil
	}
	return keyErrorf(section+".cert-file", "is required because %s has a TLS URL", key)
}

func (t security) check(section string) error {
	if err := checkPair(section+".cert-file", t.CertFile, section+".key-file", t.KeyFile); err != nil {
		return err
	}
	if err := checkPair(section+".client-cert-file", t.ClientCertFile, section+".client-key-file", t.ClientKeyFile); err != nil {
		return err
	}
	if len(t.AllowedCNs) > 0 && len(t.AllowedHostnames) > 0 {
		return keyErrorf(section+".allowed-cn", "cannot be combined with allowed-hostname")
	}
	return t.checkCA(section)
}

// checkPair loads a certificate and its key like etcd. Errors contain file paths but never the content of a file.
func checkPair(certKey, certFile, keyKey, keyFile string) error {
	switch {
	case certFile == "" && keyFile == "":
		return nil
	case certFile == "":
		return keyErrorf(certKey, "is required if %s is set", keyKey)
	case keyFile == "":
		return keyErrorf(keyKey, "is required if %s is set", certKey)
	}
	cert, err := readFile(certKey, certFile, checkCertificate)
	if err != nil {
		return err
	}
	_, err = readFile(keyKey, keyFile, func(key []byte) error {
		_, err := tls.X509KeyPair(cert, key)
		return err
	})
	return err
}

// readFile reads and checks a file. All errors match bootstrap.ErrCertificates.
func readFile(key, path string, check func(content []byte) error) ([]byte, error) {
	content, err := disk.ReadCertificates(path)
	if err == nil {
		err = check(content)
	}
	if err != nil {
		return nil, keyErrorf(key, "cannot load file %s: %w", quote(path), bootstrap.Mark(err, bootstrap.ErrCertificates))
	}
	return content, nil
}

// checkCertificate requires a valid CERTIFICATE block that crypto/tls can use as the leaf of a chain.
func checkCertificate(content []byte) error {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			_, err := x509.ParseCertificate(block.Bytes)
			return err
		}
	}
	return errNoCertificate
}

var errNoCertificate = errors.New("no PEM certificate found")

// checkCA checks the CA bundle like etcd, which requires every PEM block to be a certificate.
func (t security) checkCA(section string) error {
	if t.TrustedCAFile == "" {
		return nil
	}
	_, err := readFile(section+".trusted-ca-file", t.TrustedCAFile, func(bundle []byte) error {
		block, rest := pem.Decode(bundle)
		if block == nil {
			return errNoCertificate
		}
		for ; block != nil; block, rest = pem.Decode(rest) {
			if _, err := x509.ParseCertificate(block.Bytes); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
