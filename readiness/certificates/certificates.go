// Package certificates knows the certificate files in use and when what is in them ends. It reads them again by itself, as
// they are renewed while the program runs, and warns of each that ends soon.
//
// The command names the files, at the start and once etcd's configuration is known; the status document shows them.
package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/exitcode/smallfile"
	"etcd-wrapper/readiness/status"
)

// rereadAfter is how old an answer about certificate files may be.
const rereadAfter = 10 * time.Second

// maxBytes bounds what is read of one certificate file. The bundles of whole operating systems have a quarter of it.
const maxBytes = 1 << 20

// What a certificate file is for.
const (
	WrapperServer = "wrapper_server" // of the wrapper's own server
	SidecarCA     = "sidecar_ca"     // that the sidecar's certificate is checked with
	EtcdClient    = "etcd_client"
	EtcdServer    = "etcd_server"
	EtcdServerCA  = "etcd_server_ca" // that clients' certificates are checked with
	EtcdPeer      = "etcd_peer"
	EtcdPeerCA    = "etcd_peer_ca"
)

// Files are the certificate files in use. The methods may be called from any goroutine.
type Files struct {
	log zerolog.Logger

	mu     sync.Mutex
	paths  map[string]string // by what they are for; empty where there is none
	found  []status.Certificate
	readAt time.Time
	warned map[string]time.Time // the ends that were warned of
}

// New returns the files that are in use from the start: paths by what they are for, an empty one where there is none. It
// reads nothing yet.
func New(paths map[string]string, log zerolog.Logger) *Files {
	return &Files{log: log, paths: maps.Clone(paths), warned: map[string]time.Time{}}
}

// Use adds further files, and reads all.
func (f *Files) Use(paths map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.paths, paths)
	f.read()
}

// Now returns what is in the files, sorted by what they are for. What was read less than 10 s ago is not read again. A file
// that can't be read is left out.
func (f *Files) Now() []status.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.readAt) > rereadAfter {
		f.read()
	}
	return f.found
}

// read looks at all files at once: of those on a mount that hangs, what was known before is told again.
func (f *Files) read() {
	known := f.found
	f.found, f.readAt = nil, time.Now()
	found := make(chan status.Certificate, len(f.paths))
	var reading sync.WaitGroup
	for name, path := range f.paths {
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
		f.found = append(f.found, certificate)
		f.warn(certificate, f.readAt)
	}
	slices.SortFunc(f.found, func(a, b status.Certificate) int { return strings.Compare(a.Name, b.Name) })
}

// warn logs once of each certificate that ends soon, and once more when it has ended.
func (f *Files) warn(c status.Certificate, now time.Time) {
	ended := !c.Expires.After(now)
	key := c.Name
	if ended {
		key += " expired"
	}
	if !c.ExpiresSoon(now) || f.warned[key].Equal(c.Expires) {
		return
	}
	f.warned[key] = c.Expires
	line := f.log.Warn().Str("certificate", c.Name).Str("path", c.Path).Time("expires", c.Expires)
	if ended {
		line.Msg("a certificate has expired")
		return
	}
	line.Msg("a certificate expires soon")
}

// firstEnd is when the first certificate in a PEM file ends.
func firstEnd(path string) (first time.Time, err error) {
	content, err := smallfile.Read(path, maxBytes)
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
