// Package certificates checks the certificate files in use. It reads them every few seconds, because they are renewed while the program
// runs, and warns before one expires. Once etcd serves, it also verifies etcd's own listeners by a TLS handshake, as a client does: dates
// alone do not show a certificate without the advertised names, for clients only, or of another authority.
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

// rereadAfter is the age at which the content of the files is read again.
const rereadAfter = 3 * time.Second

// maxBytes is the largest certificate file that is read. The bundle of a whole operating system has a quarter of that.
const maxBytes = 1 << 20

// The purposes of certificate files.
const (
	SidecarCA    = "sidecar_ca" // verifies the sidecar's certificate
	EtcdClient   = "etcd_client"
	EtcdServer   = "etcd_server"
	EtcdServerCA = "etcd_server_ca" // verifies clients' certificates
	EtcdPeer     = "etcd_peer"
	EtcdPeerCA   = "etcd_peer_ca"
)

// Files are the certificate files in use. The methods may be called from any goroutine.
type Files struct {
	log zerolog.Logger

	reading    sync.Mutex // held while files are read; guards the three fields below
	warned     map[string]time.Time
	verified   fingerprint // of the files at the last handshakes
	nextVerify time.Time   // when handshakes that failed are repeated

	mu    sync.Mutex        // never held during I/O
	paths map[string]string // by purpose; empty if there is no such file
	found []file            // sorted by purpose
	pools map[string]file   // of authorities, as etcd read them at its start: it does not read them again
	begun time.Time         // when the last read started

	listeners []Listener // of an etcd that serves
	refused   []string   // why clients or members that verify its certificates cannot connect
}

// file describes the content of a certificate file.
type file struct {
	status.Certificate
	leaf   validity // of the first certificate, which is shown to the other side
	any    validity // while at least one of them is valid
	digest [sha256.Size]byte
}

type validity struct{ begins, ends time.Time }

// isPool reports whether a file has the authorities that etcd verifies others with.
func (f file) isPool() bool { return f.Name == EtcdServerCA || f.Name == EtcdPeerCA }

// New returns the files that are in use from the start: paths by purpose, empty if there is no such file. They are read in the background
// now, and again at each call that finds them older than 3 s.
func New(paths map[string]string, log zerolog.Logger) *Files {
	f := &Files{log: log, paths: maps.Clone(paths), warned: map[string]time.Time{}, pools: map[string]file{}}
	f.refresh(time.Now())
	return f
}

// refresh starts to read the files in the background if that is due. Even with a mount that hangs it ends within a second.
func (f *Files) refresh(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.begun) > rereadAfter {
		f.begun = now
		go f.read()
	}
}

// Use adds the files of an etcd that is about to start and reads all files, which takes up to a second.
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

// Now returns the content of the files as last read, sorted by purpose, from memory. A file that cannot be read is left out.
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

// read reads all files at once. For a file on a mount that hangs, the previous content is kept.
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
	reading.Wait() // up to a second
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
	f.verifyListeners(found, time.Now())
}

func look(name, path string, known []file) (content file, ok bool) {
	content, err := dates(path)
	if before := slices.IndexFunc(known, func(k file) bool { return k.Name == name && k.Path == path }); before >= 0 && errors.Is(err, disk.ErrHangs) {
		return known[before], true
	}
	content.Name, content.Path = name, path
	return content, err == nil
}

// The ways out.
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

// dates returns the content of a PEM file with the validity of its certificates.
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
