package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode/smallfile"
	"etcd-wrapper/readiness/status"
)

const (
	// rereadCertificates is how old an answer about certificate files may be.
	rereadCertificates = 10 * time.Second
	// expiresSoon is how long before its end a certificate is worth a warning.
	expiresSoon = 72 * time.Hour
)

// certificates are the certificate files in use. Its methods may be called from any goroutine.
type certificates struct {
	log zerolog.Logger

	mu     sync.Mutex
	files  map[string]string // paths by what they are for; empty where there is none
	told   []status.Certificate
	readAt time.Time
	warned map[string]time.Time // the ends that were warned of
}

func newCertificates(flags *startCommand, log zerolog.Logger) *certificates {
	return &certificates{log: log, warned: map[string]time.Time{}, files: map[string]string{
		"wrapper_server": flags.WrapperCertPath, "etcd_client": flags.EtcdCertPath, "sidecar_ca": flags.SidecarCAPath,
	}}
}

// add takes in the files that etcd serves and connects with.
func (c *certificates) add(config *embed.Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files["etcd_server"], c.files["etcd_server_ca"] = config.ClientTLSInfo.CertFile, config.ClientTLSInfo.TrustedCAFile
	c.files["etcd_peer"], c.files["etcd_peer_ca"] = config.PeerTLSInfo.CertFile, config.PeerTLSInfo.TrustedCAFile
	c.read()
}

// now returns what is in the files, sorted by name. A file that can't be read is left out.
func (c *certificates) now() []status.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) > rereadCertificates {
		c.read()
	}
	return c.told
}

// read looks at all files at once: of those on a mount that hangs, what was known before is told again.
func (c *certificates) read() {
	known := c.told
	c.told, c.readAt = nil, time.Now()
	found := make(chan status.Certificate, len(c.files))
	var reading sync.WaitGroup
	for name, path := range c.files {
		before := slices.IndexFunc(known, func(k status.Certificate) bool { return k.Name == name && k.Path == path })
		reading.Go(func() {
			expires, err := firstEnd(path)
			if errors.Is(err, smallfile.ErrHangs) && before >= 0 {
				expires, err = known[before].Expires, nil
			}
			if err == nil {
				found <- status.Certificate{Name: name, Path: path, Expires: expires}
			}
		})
	}
	reading.Wait() // for a second at most
	close(found)
	for certificate := range found {
		c.told = append(c.told, certificate)
		c.warn(certificate.Name, certificate.Path, certificate.Expires)
	}
	slices.SortFunc(c.told, func(a, b status.Certificate) int { return strings.Compare(a.Name, b.Name) })
}

// warn tells once of each certificate that ends soon, and once more when it has ended.
func (c *certificates) warn(name, path string, expires time.Time) {
	left := time.Until(expires)
	key := name
	if left <= 0 {
		key += " expired"
	}
	if left > expiresSoon || c.warned[key].Equal(expires) {
		return
	}
	c.warned[key] = expires
	line := c.log.Warn().Str("certificate", name).Str("path", path).Time("expires", expires)
	if left <= 0 {
		line.Msg("a certificate has expired")
		return
	}
	line.Msg("a certificate expires soon")
}

// firstEnd is when the first certificate in a PEM file ends.
func firstEnd(path string) (first time.Time, err error) {
	content, err := bootstrap.ReadCertificates(path)
	if err != nil {
		return first, err
	}
	err = errors.New("it has no certificate")
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		certificate, unreadable := x509.ParseCertificate(block.Bytes)
		if unreadable == nil && (err != nil || certificate.NotAfter.Before(first)) {
			first, err = certificate.NotAfter, nil
		}
	}
	return first, err
}
