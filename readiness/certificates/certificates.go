// Package certificates checks the certificate files in use. It reads them every few seconds, because they are renewed
// while the program runs, and warns before one expires. Once etcd serves, it also verifies etcd's own listeners by a
// TLS handshake, like a client: dates alone do not reveal a certificate that lacks the advertised names, is for
// clients only, or was issued by another CA.
//
// The command names the files when it starts and once etcd's configuration is known. The status document shows them.
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

// rereadAfter is the age at which the content of the files is read again.
const rereadAfter = 3 * time.Second

// The purposes of certificate files.
const (
	SidecarCA    = "sidecar_ca" // verifies the sidecar's certificate
	EtcdClient   = "etcd_client"
	EtcdServer   = "etcd_server"
	EtcdServerCA = "etcd_server_ca" // verifies clients' certificates
	EtcdPeer     = "etcd_peer"
	EtcdPeerCA   = "etcd_peer_ca"
)

// Files are the certificate files in use. Its methods may be called from any goroutine.
type Files struct {
	log zerolog.Logger

	reading    sync.Mutex        // held while files are read; guards the three fields below
	warned     map[string]string // last logged reason by purpose
	verified   fingerprint       // fingerprint of the files at the last handshakes
	nextVerify time.Time         // time at which failed handshakes are repeated

	mu     sync.Mutex        // never held during I/O
	paths  map[string]string // paths by purpose; empty if there is no such file
	files  []file            // sorted by purpose
	pools  map[string]file   // CA bundles as etcd read them at its start, because etcd does not reread them
	readAt time.Time         // start of the last read

	listeners []Listener // listeners of the running etcd
	rejected  []string   // reasons why clients or members that verify etcd's certificates cannot connect
}

// file describes the content of a certificate file.
type file struct {
	status.Certificate
	leaf   period // validity of the first certificate, which is the one presented to clients
	any    period // time in which at least one certificate is valid
	digest [sha256.Size]byte
}

type period struct{ start, end time.Time }

// isPool reports whether a file is a CA bundle that etcd verifies others with.
func (f file) isPool() bool { return f.Name == EtcdServerCA || f.Name == EtcdPeerCA }

// New returns the files that are in use from the start: paths by purpose, with "" if there is no such file. It starts
// reading them in the background. Each later call that finds the content older than 3 s does so again.
func New(paths map[string]string, log zerolog.Logger) *Files {
	f := &Files{log: log, paths: maps.Clone(paths), warned: map[string]string{}, pools: map[string]file{}}
	f.refresh(time.Now())
	return f
}

// refresh starts reading the files in the background if that is due. It returns within a second even if a mount
// hangs.
func (f *Files) refresh(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.readAt) > rereadAfter {
		f.readAt = now
		go f.read()
	}
}

// Add adds the files of an etcd that is about to start and reads all files, which takes up to a second.
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

// List returns the content of the files as last read, sorted by purpose. It answers from memory and omits files that
// cannot be read.
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

// read reads all files in parallel. A file on a mount that hangs keeps its previous content.
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
	reading.Wait() // blocks for up to a second
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

// warn logs once that a certificate is not valid or about to expire.
func (f *Files) warn(c file, now time.Time) {
	reason, _ := c.check(file{}, now)
	if reason != "" && f.warned[c.Name] != reason {
		f.log.Warn().Str("certificate", c.Name).Str("path", c.Path).Time("expires", c.NotAfter.UTC()).
			Msgf("certificate %s needs attention: %s", c.Name, reason)
	}
	f.warned[c.Name] = reason
}

// parse reads a PEM file with the validity of its certificates.
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
		return f, errors.New("it has no certificate")
	}
	f.digest, f.leaf = sha256.Sum256(content), period{starts[0], ends[0]}
	slices.SortFunc(starts, time.Time.Compare)
	slices.SortFunc(ends, time.Time.Compare)
	last := len(starts) - 1
	f.NotBefore, f.NotAfter, f.any = starts[last], ends[0], period{starts[0], ends[last]}
	return f, nil
}

// Check returns the problems of the files at now, from memory. ended is the reason why no client can connect to etcd:
// the certificate of its client listener is not valid, or none of the CAs that it verifies clients with is. soon
// lists all other problems: files that are not valid now or expire within 72 hours, CA bundles that etcd has not read
// yet, and listeners whose certificates others reject. Expired CAs of peers are not in ended, because established
// connections continue, and linearizable reads fail once they close.
//
// etcd reads its own certificate and key for each connection, so Check uses the files. etcd reads CA bundles once, at
// its start.
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
	renew   = "renew it in its Secret, the file is read again by itself"
	restart = "renew it in its Secret, and restart this member: etcd reads it once, at its start"
	reissue = "set this machine's clock, or have it issued again"
)

// check returns the problem of a file and whether it excludes clients. For a CA bundle, read is the content that etcd
// read.
func (f file) check(read file, now time.Time) (reason string, excludesClients bool) {
	advice, isLoaded, hasChanged := renew, read.Path != "", read.digest != f.digest
	switch {
	case isLoaded && hasChanged:
		advice = "restart this member: the file is renewed already"
	case f.isPool():
		advice = restart
	}
	leaf, authorities := f.leaf.checkTime(now, advice), read.any.checkTime(now, advice)
	switch {
	case isLoaded && authorities != "":
		return fmt.Sprintf("no %s can connect: %s %s, as etcd read it at its start, %s", peers[f.Name], f.Name, f.Path, authorities), f.Name == EtcdServerCA
	case isLoaded && hasChanged:
		return fmt.Sprintf("%s %s has changed since etcd read it at its start: restart this member", f.Name, f.Path), false
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

// checkTime returns why certificates are not valid at now, with advice, or "".
func (v period) checkTime(now time.Time, advice string) string {
	switch {
	case !now.Before(v.end):
		return fmt.Sprintf("has expired on %s; %s", date(v.end), advice)
	case now.Before(v.start):
		return fmt.Sprintf("is not valid before %s; %s", date(v.start), reissue)
	default:
		return ""
	}
}

// peers describes the clients that a CA bundle admits.
var peers = map[string]string{EtcdServerCA: "client with a certificate", EtcdPeerCA: "other member"}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
