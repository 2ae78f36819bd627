// Package certificates knows the certificate files in use and when what is in them begins and ends. It reads them again by itself, as
// they are renewed while the program runs, and warns of each that ends soon.
//
// The command names the files, at the start and once etcd's configuration is known; the status document shows them.
package certificates

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/disk"
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

	reading   sync.Mutex // held while files are read, and by what only reading touches
	warned    map[string]time.Time
	shaken    fingerprint // of the files at the last handshakes
	nextShake time.Time   // when handshakes that failed are repeated

	mu    sync.Mutex        // held for moments only
	paths map[string]string // by what they are for; empty where there is none
	found []file            // sorted by what they are for
	pools map[string]file   // of authorities, as etcd has read them at its start, which it does once
	begun time.Time         // when they were read last

	listeners []Listener // of an etcd that serves
	refused   []string   // why clients or members that verify its certificates cannot connect
}

// file is what is in a certificate file.
type file struct {
	status.Certificate
	leaf   validity // of the first certificate in it, the one that is shown to the other side
	any    validity // from when on the first of them is valid, and until when the last
	digest [sha256.Size]byte
}

type validity struct{ begins, ends time.Time }

// isPool tells whether a file has the authorities that etcd checks others with.
func (f file) isPool() bool { return f.Name == EtcdServerCA || f.Name == EtcdPeerCA }

// New returns the files that are in use from the start: paths by what they are for, an empty one where there is none. They
// are read in the background at once, and then again whenever somebody asks and they have not been for 3 s.
func New(paths map[string]string, log zerolog.Logger) *Files {
	f := &Files{log: log, paths: maps.Clone(paths), warned: map[string]time.Time{}, pools: map[string]file{}}
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

// Use adds the files of an etcd that is about to start, and reads all, which takes a second at most.
func (f *Files) Use(paths map[string]string) {
	f.mu.Lock()
	maps.Copy(f.paths, paths)
	f.mu.Unlock()
	f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, each := range f.found {
		if each.isPool() {
			f.pools[each.Name] = each
		}
	}
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
		f.warn(content, time.Now())
	}
	slices.SortFunc(found, func(a, b file) int { return strings.Compare(a.Name, b.Name) })
	f.mu.Lock()
	f.found = found
	f.mu.Unlock()
	f.shakeHands(found, time.Now())
}

func look(name, path string, known []file) (content file, ok bool) {
	content, err := dates(path)
	if before := slices.IndexFunc(known, func(k file) bool { return k.Name == name && k.Path == path }); before >= 0 && errors.Is(err, disk.ErrHangs) {
		return known[before], true
	}
	content.Name, content.Path = name, path
	return content, err == nil
}

// What to do about a certificate.
const (
	renew   = "renew it in its Secret, the file is read again by itself"
	restart = "renew it in its Secret, and restart this member: etcd reads it once, at its start"
	early   = "set this machine's clock, or have it issued again"
)

func (f file) advice() string {
	if f.isPool() {
		return restart
	}
	return renew
}

// warn logs each certificate once when it ends soon, and again when it has ended.
func (f *Files) warn(c file, now time.Time) {
	ended := !c.NotAfter.After(now)
	key := c.Name
	if ended {
		key += " expired"
	}
	if !c.ExpiresSoon(now) || f.warned[key].Equal(c.NotAfter) {
		return
	}
	f.warned[key] = c.NotAfter
	word := "expires"
	if ended {
		word = "has expired"
	}
	f.log.Warn().Str("certificate", c.Name).Str("path", c.Path).Time("expires", c.NotAfter.UTC()).
		Msgf("certificate %s %s %s on %s; %s", c.Name, c.Path, word, date(c.NotAfter), c.advice())
}

// dates are when the certificates in a PEM file begin and end.
func dates(path string) (is file, err error) {
	content, err := disk.Read(path, maxBytes)
	if err != nil {
		return is, err
	}
	is.digest, err = sha256.Sum256(content), errors.New("it has no certificate")
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		certificate, unreadable := x509.ParseCertificate(block.Bytes)
		if unreadable != nil {
			continue
		}
		of := validity{certificate.NotBefore, certificate.NotAfter}
		if err != nil {
			is.NotBefore, is.NotAfter, is.leaf, is.any, err = of.begins, of.ends, of, of, nil
		}
		is.NotBefore, is.NotAfter = later(is.NotBefore, of.begins), earlier(is.NotAfter, of.ends)
		is.any = validity{earlier(is.any.begins, of.begins), later(is.any.ends, of.ends)}
	}
	return is, err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
