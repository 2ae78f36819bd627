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

	"etcd-wrapper/internal/smallfile"
	"etcd-wrapper/readiness/status"
)

// rereadAfter is how old what is known of the files may be.
const rereadAfter = 3 * time.Second

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

	reading sync.Mutex // held while files are read, and by what only reading touches
	warned  map[string]time.Time

	mu    sync.Mutex        // held for moments only
	paths map[string]string // by what they are for; empty where there is none
	found []file            // sorted by what they are for
	begun time.Time         // when they were read last
}

// file is what is in a certificate file.
type file struct {
	status.Certificate
	leafEnds time.Time // when the first certificate in it ends, the one that is shown to the other side
}

// New returns the files that are in use from the start: paths by what they are for, an empty one where there is none. They
// are read in the background at once, and then again whenever somebody asks and they have not been for 3 s.
func New(paths map[string]string, log zerolog.Logger) *Files {
	f := &Files{log: log, paths: maps.Clone(paths), warned: map[string]time.Time{}}
	f.refresh(time.Now())
	return f
}

// refresh begins to read the files if that is due. Nobody waits for it: it ends within a second, whatever hangs.
func (f *Files) refresh(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.begun) > rereadAfter {
		f.begun = now
		go f.read()
	}
}

// Use adds further files, and reads all, which takes a second at most.
func (f *Files) Use(paths map[string]string) {
	f.mu.Lock()
	maps.Copy(f.paths, paths)
	f.mu.Unlock()
	f.read()
}

// Now returns what was in the files when they were read last, sorted by what they are for, from memory. A file that can't
// be read is left out.
func (f *Files) Now() []status.Certificate {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]status.Certificate, len(f.found))
	for i, each := range f.found {
		all[i] = each.Certificate
	}
	return all
}

// read looks at all files at once: of those on a mount that hangs, what was known before is returned again.
func (f *Files) read() {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.mu.Lock()
	paths, known := maps.Clone(f.paths), f.found
	f.mu.Unlock()
	read := make(chan file, len(paths))
	var reading sync.WaitGroup
	for name, path := range paths {
		reading.Go(func() {
			if content, ok := look(name, path, known); ok {
				read <- content
			}
		})
	}
	reading.Wait() // for a second at most
	close(read)
	var found []file
	for content := range read {
		found = append(found, content)
		f.warn(content.Certificate, time.Now())
	}
	slices.SortFunc(found, func(a, b file) int { return strings.Compare(a.Name, b.Name) })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = found
}

func look(name, path string, known []file) (content file, ok bool) {
	first, leaf, err := ends(path)
	if before := slices.IndexFunc(known, func(k file) bool { return k.Name == name && k.Path == path }); before >= 0 && errors.Is(err, smallfile.ErrHangs) {
		return known[before], true
	}
	return file{status.Certificate{Name: name, Path: path, Expires: first}, leaf}, err == nil
}

// renew is what to do about a certificate, whoever reads it.
const renew = "renew it in its Secret, the file is read again by itself"

// warn logs each certificate once when it ends soon, and again when it has ended.
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
	line := f.log.Warn().Str("certificate", c.Name).Str("path", c.Path).Time("expires", c.Expires.UTC())
	if ended {
		line.Msg("a certificate has expired; " + renew)
		return
	}
	line.Msg("a certificate expires soon; " + renew)
}

// ends are when the first to end of the certificates in a PEM file does, and when the first one in the file does.
func ends(path string) (first, leaf time.Time, err error) {
	content, err := smallfile.Read(path, maxBytes)
	if err != nil {
		return first, leaf, err
	}
	err = errors.New("it has no certificate")
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		certificate, unreadable := x509.ParseCertificate(block.Bytes)
		switch {
		case unreadable != nil:
		case err != nil:
			first, leaf, err = certificate.NotAfter, certificate.NotAfter, nil
		case certificate.NotAfter.Before(first):
			first = certificate.NotAfter
		}
	}
	return first, leaf, err
}
