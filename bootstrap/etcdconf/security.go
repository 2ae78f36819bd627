package etcdconf

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"slices"

	"go.etcd.io/etcd/client/pkg/v3/tlsutil"
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

func (s *settings) checkClientSecurity() error {
	const section = "client-transport-security"
	for _, listener := range []struct {
		key  string
		urls []url.URL
	}{
		{"listen-client-urls", s.ListenClientUrls},
		{"listen-client-http-urls", s.ListenClientHttpUrls},
		{"listen-metrics-urls", s.ListenMetricsUrls},
	} {
		if err := s.ClientSecurity.checkSufficient(section, listener.key, listener.urls); err != nil {
			return err
		}
	}
	return s.ClientSecurity.check(section)
}

func (s *settings) checkPeerSecurity() error {
	const section = "peer-transport-security"
	if err := s.PeerSecurity.checkSufficient(section, "listen-peer-urls", s.ListenPeerUrls); err != nil {
		return err
	}
	return s.PeerSecurity.check(section)
}

// checkSufficient wants a certificate if one of the URLs uses TLS. etcd notices only when it opens the listener.
func (t security) checkSufficient(section, key string, urls []url.URL) error {
	if t.CertFile != "" || t.KeyFile != "" || t.AutoTLS || !slices.ContainsFunc(urls, usesTLS) {
		return nil
	}
	return problem(section+".cert-file", "is required, since %s has a URL that uses TLS", key)
}

func (t security) check(section string) error {
	if err := checkPair(section+".cert-file", t.CertFile, section+".key-file", t.KeyFile); err != nil {
		return err
	}
	if err := checkPair(section+".client-cert-file", t.ClientCertFile, section+".client-key-file", t.ClientKeyFile); err != nil {
		return err
	}
	if len(t.AllowedCNs) > 0 && len(t.AllowedHostnames) > 0 {
		return problem(section+".allowed-cn", "cannot be set together with allowed-hostname")
	}
	if t.TrustedCAFile == "" {
		return nil
	}
	return checkAuthorities(section+".trusted-ca-file", t.TrustedCAFile)
}

// checkPair loads a certificate and its key as etcd will. No error tells more of a file than its path.
func checkPair(certKey, certFile, keyKey, keyFile string) error {
	switch {
	case certFile == "" && keyFile == "":
		return nil
	case certFile == "":
		return problem(certKey, "is required together with %s", keyKey)
	case keyFile == "":
		return problem(keyKey, "is required together with %s", certKey)
	}
	if err := checkCertificate(certFile); err != nil {
		return unusable(certKey, certFile, err)
	}
	if err := checkRegular(keyFile); err != nil {
		return unusable(keyKey, keyFile, err)
	}
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return unusable(keyKey, keyFile, err)
	}
	return nil
}

// checkCertificate wants what crypto/tls takes for a chain: a first CERTIFICATE block that can be parsed.
func checkCertificate(path string) error {
	if err := checkRegular(path); err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			_, err := x509.ParseCertificate(block.Bytes)
			return err
		}
	}
	return errNoCertificate
}

var errNoCertificate = errors.New("it has no PEM certificate")

// checkAuthorities reads the bundle as etcd will: every PEM block in it has to be a certificate.
func checkAuthorities(key, path string) error {
	if err := checkRegular(path); err != nil {
		return unusable(key, path, err)
	}
	pool, err := tlsutil.NewCertPool([]string{path})
	if err == nil && pool.Equal(x509.NewCertPool()) {
		err = errNoCertificate
	}
	if err != nil {
		return unusable(key, path, err)
	}
	return nil
}

// checkRegular keeps away from pipes and devices, whose reader may wait for ever.
func checkRegular(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	return nil
}

func unusable(key, path string, err error) error {
	var in *os.PathError
	if errors.As(err, &in) { // its text repeats the path
		err = in.Err
	}
	return problem(key, "cannot use file %s: %w", quote(path), err)
}
