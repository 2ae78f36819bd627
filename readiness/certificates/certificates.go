// Package certificates checks the certificate files in use. It rereads the files every few seconds, because they may
// be renewed at any time, and warns before a certificate expires. Once etcd is serving, the package also performs a
// TLS handshake with each of etcd's listeners, to detect certificates that do not cover the advertised names, are
// valid only for client authentication, or were issued by a different CA.
//
// Package main adds files when it starts and when etcd's configuration is known. The status document lists them.
package certificates

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/disk"
	"etcd-wrapper/readiness/status"
)

// rereadAfter is the minimum time between the starts of two reads in the background.
const rereadAfter = 3 * time.Second

// Purposes of certificate files.
const (
	SidecarCA    = "sidecar_ca" // CA bundle that verifies the sidecar's certificate
	EtcdClient   = "etcd_client"
	EtcdServer   = "etcd_server"
	EtcdServerCA = "etcd_server_ca" // CA bundle that verifies client certificates
	EtcdPeer     = "etcd_peer"
	EtcdPeerCA   = "etcd_peer_ca"
)

// Files contains the certificate files in use. The methods of Files are safe for concurrent use.
type Files struct {
	log zerolog.Logger

	reading    sync.Mutex        // held while files are being read; guards the next three fields
	warned     map[string]string // last logged problem, by purpose
	verified   fingerprint       // fingerprint of the files at the time of the last handshakes
	nextVerify time.Time         // time at which failed handshakes are retried

	mu     sync.Mutex        // guards the fields below; never held during I/O
	paths  map[string]string // paths by purpose; empty if there is no file
	files  []file            // sorted by purpose
	pools  map[string]file   // CA bundles as loaded by etcd at startup
	readAt time.Time         // start time of the last read

	listeners []Listener // listeners of the running etcd
	rejected  []string   // errors of the last handshakes
}

// A file describes the content of a certificate file.
type file struct {
	status.Certificate
	leaf   period // validity of the first certificate in the file, the one presented in handshakes
	any    period // period in which at least one certificate is valid
	digest [sha256.Size]byte
}

type period struct{ start, end time.Time }

// isPool reports whether the file is a CA bundle that etcd loads at startup.
func (f file) isPool() bool { return f.Name == EtcdServerCA || f.Name == EtcdPeerCA }

// New returns Files with the given paths by purpose; an empty path means that there is no file. New starts reading
// the files in the background. Later calls to methods read them again if the last read started more than 3 s ago.
func New(paths map[string]string, log zerolog.Logger) *Files {
	f := &Files{log: log, paths: maps.Clone(paths), warned: map[string]string{}, pools: map[string]file{}}
	f.refresh(time.Now())
	return f
}

// refresh starts reading the files in the background, unless they were read recently.
func (f *Files) refresh(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.readAt) > rereadAfter {
		f.readAt = now
		go f.read()
	}
}

// Add adds etcd's files and reads all files, which may take up to a second. It must be called before etcd is started.
func (f *Files) Add(paths map[string]string) {
	f.mu.Lock()
	maps.Copy(f.paths, paths)
	f.mu.Unlock()
	f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, each := range f.files {
		if each.isPool() {
			f.pools[each.Name] = each
		}
	}
}

// List returns the certificates as of the last read, sorted by purpose. It does not block, and omits unreadable
// files.
func (f *Files) List() []status.Certificate {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]status.Certificate, len(f.files))
	for i, each := range f.files {
		all[i] = each.Certificate
	}
	return all
}

// read reads all files in parallel. If a read hangs, the file's previous content is kept.
func (f *Files) read() {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.mu.Lock()
	paths, previous := maps.Clone(f.paths), f.files
	f.mu.Unlock()
	results := make(chan file, len(paths))
	var reading sync.WaitGroup
	for name, path := range paths {
		reading.Go(func() {
			content, err := parse(path)
			i := slices.IndexFunc(previous, func(p file) bool { return p.Name == name && p.Path == path })
			if i >= 0 && errors.Is(err, disk.ErrHangs) {
				content, err = previous[i], nil
			}
			if content.Name, content.Path = name, path; err == nil {
				results <- content
			}
		})
	}
	reading.Wait() // takes up to a second
	close(results)
	var files []file
	for content := range results {
		files = append(files, content)
		f.warn(content, time.Now())
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.Name, b.Name) })
	f.mu.Lock()
	f.files = files
	f.mu.Unlock()
	f.verifyListeners(files, time.Now())
}

// warn logs that a certificate is not valid or is about to expire. Each problem is logged only once.
func (f *Files) warn(c file, now time.Time) {
	reason, _ := c.check(file{}, now)
	if reason != "" && f.warned[c.Name] != reason {
		f.log.Warn().Str("certificate", c.Name).Str("path", c.Path).Time("expires", c.NotAfter.UTC()).
			Msgf("certificate %s needs attention: %s", c.Name, reason)
	}
	f.warned[c.Name] = reason
}

// parse reads a PEM file and the validity of its certificates.
func parse(path string) (f file, err error) {
	content, err := disk.ReadCertificates(path)
	if err != nil {
		return f, err
	}
	var starts, ends []time.Time
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			starts, ends = append(starts, certificate.NotBefore), append(ends, certificate.NotAfter)
		}
	}
	if len(starts) == 0 {
		return f, errors.New("the file contains no certificate")
	}
	f.digest, f.leaf = sha256.Sum256(content), period{starts[0], ends[0]}
	slices.SortFunc(starts, time.Time.Compare)
	slices.SortFunc(ends, time.Time.Compare)
	last := len(starts) - 1
	f.NotBefore, f.NotAfter, f.any = starts[last], ends[0], period{starts[0], ends[last]}
	return f, nil
}

// Check returns the problems with the files at the time now. Check does not block. ended is the reason why no client
// can connect to etcd: the client listener's certificate is not valid, or no CA for client certificates is. soon
// lists all other problems: files that are not valid or expire within 72 hours, CA bundles that have changed since
// etcd loaded them, and listener certificates that fail verification. Expired peer CAs are listed in soon, because
// established connections stay open; once they are closed, linearizable reads fail.
//
// etcd rereads certificates and keys for each connection, but reads CA bundles only at startup.
func (f *Files) Check(now time.Time) (ended, soon string) {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	var rest []string
	for _, each := range f.files {
		switch reason, excludesClients := each.check(f.pools[each.Name], now); {
		case excludesClients:
			ended = reason
		case reason != "":
			rest = append(rest, reason)
		}
	}
	return ended, strings.Join(append(rest, f.rejected...), "; ")
}

const (
	renew   = "renew it in its Secret; no restart is needed"
	restart = "renew it in its Secret and restart this member, because etcd reads it only at startup"
	reissue = "correct this machine's clock or reissue the certificate"
)

// check returns the problem with a file, and whether it prevents all clients from connecting. read is the file as etcd
// loaded it at startup; it is zero unless the file is a CA bundle.
func (f file) check(read file, now time.Time) (reason string, excludesClients bool) {
	advice, isLoaded, hasChanged := renew, read.Path != "", read.digest != f.digest
	switch {
	case isLoaded && hasChanged:
		advice = "restart this member to load the renewed file"
	case f.isPool():
		advice = restart
	}
	leaf, authorities := f.leaf.checkTime(now, advice), read.any.checkTime(now, advice)
	switch {
	case isLoaded && authorities != "":
		return fmt.Sprintf("no %s can connect: %s %s, which etcd loaded at startup, %s", peers[f.Name], f.Name, f.Path, authorities), f.Name == EtcdServerCA
	case isLoaded && hasChanged:
		return fmt.Sprintf("%s %s has changed since etcd loaded it: restart this member", f.Name, f.Path), false
	case f.Name == EtcdServer && leaf != "":
		return fmt.Sprintf("no client can connect: etcd's server certificate %s %s", f.Path, leaf), true
	}
	problem := period{f.NotBefore, f.NotAfter}.checkTime(now, advice)
	if problem == "" && f.IsExpiring(now) {
		problem = fmt.Sprintf("expires on %s; %s", date(f.NotAfter), advice)
	}
	if problem != "" {
		problem = fmt.Sprintf("%s %s %s", f.Name, f.Path, problem)
	}
	return problem, false
}

// checkTime returns a description of the problem, with advice, if now is outside the validity period, and ""
// otherwise.
func (v period) checkTime(now time.Time, advice string) string {
	switch {
	case !now.Before(v.end):
		return fmt.Sprintf("expired on %s; %s", date(v.end), advice)
	case now.Before(v.start):
		return fmt.Sprintf("is not valid before %s; %s", date(v.start), reissue)
	default:
		return ""
	}
}

// peers describes whose certificates a CA bundle verifies.
var peers = map[string]string{EtcdServerCA: "client with a certificate", EtcdPeerCA: "other member"}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
