package certificates

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/internal/disk"
)

const (
	handshakeTimeout = 5 * time.Second
	verifyInterval   = 30 * time.Second // pause before failed handshakes are repeated
)

// A Listener is one of etcd's TLS listeners.
type Listener struct {
	Name    string   // EtcdServer or EtcdPeer
	Address string   // host and port
	Hosts   []string // hosts in the advertised URLs

	Cert, Key             string // certificate files of the listener
	CA                    string // CA bundle for the listener and its clients; empty if there is none
	ClientCert, ClientKey string // client certificate to present in the handshake
}

// A fingerprint identifies the contents of a set of files.
type fingerprint [sha256.Size]byte

// Serve sets the listeners once etcd is serving. It starts a handshake with each listener to verify its certificate,
// and the handshakes are repeated whenever the files change.
func (f *Files) Serve(listeners []Listener) {
	f.mu.Lock()
	f.listeners = listeners
	f.mu.Unlock()
	go f.read()
}

// verifyListeners verifies the listeners' certificates if the files have changed, and retries a failed verification
// after 30 s. The caller must hold f.reading.
func (f *Files) verifyListeners(files []file, now time.Time) {
	f.mu.Lock()
	listeners, failed := f.listeners, len(f.rejected) > 0
	f.mu.Unlock()
	if len(listeners) == 0 {
		return
	}
	content := fingerprintOf(files, listeners)
	if content == f.verified && (!failed || now.Before(f.nextVerify)) {
		return
	}
	var rejected []string
	for _, listener := range listeners {
		if err := listener.verify(now); err != nil {
			rejected = append(rejected, err.Error())
		}
	}
	f.verified, f.nextVerify = content, time.Now().Add(verifyInterval)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rejected = rejected
}

func fingerprintOf(files []file, listeners []Listener) fingerprint {
	hash := sha256.New()
	for _, each := range files {
		_, _ = fmt.Fprintf(hash, "%s %x\n", each.Name, each.digest)
	}
	for _, each := range listeners {
		if info, err := os.Stat(each.Key); err == nil {
			_, _ = fmt.Fprintln(hash, each.Key, info.ModTime().UnixNano(), info.Size())
		}
	}
	return fingerprint(hash.Sum(nil))
}

// verify returns an error if clients that verify the listener's certificate cannot connect. Expired certificates are
// not an error, because Check reports them.
func (l Listener) verify(now time.Time) error {
	certificates, err := l.handshake()
	if err != nil {
		return fmt.Errorf("the TLS handshake with etcd's listener %s failed: %w; check that %s and %s match", l.Address, err, l.Cert, l.Key)
	}
	subject, effect := "etcd's server certificate "+l.Cert, "clients that verify the certificate cannot connect"
	if l.Name == EtcdPeer {
		subject, effect = "etcd's peer certificate "+l.Cert, "other members cannot connect"
	}
	leaf := certificates[0]
	unnamed := slices.DeleteFunc(slices.Clone(l.Hosts), func(host string) bool { return leaf.VerifyHostname(host) == nil })
	if len(unnamed) > 0 {
		return fmt.Errorf("%s does not cover every advertised host (missing: %s): %s; reissue it with the missing names", subject, strings.Join(unnamed, ", "), effect)
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now}
	for _, each := range certificates[1:] {
		options.Intermediates.AddCert(each)
	}
	if l.CA == "" { // without a CA, verify only the key usage
		options.Roots.AddCert(leaf)
	} else if content, err := disk.ReadCertificates(l.CA); err != nil || !options.Roots.AppendCertsFromPEM(content) {
		return nil // etcd would not have started with this file, so it is being replaced and will be read again
	}
	_, err = leaf.Verify(options)
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("%s does not have the extended key usage \"server auth\": %s; reissue it", subject, effect)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s is not signed by a CA in %s: %s; reissue it or correct trusted-ca-file", subject, l.CA, effect)
	case err != nil:
		return fmt.Errorf("%s cannot be verified, so %s: %w", subject, effect, err)
	}
	return nil
}

// handshake returns the certificates presented by the listener, even if the handshake fails later: with TLS 1.2, a
// listener sends its own certificate before it rejects the client's.
func (l Listener) handshake() (certificates []*x509.Certificate, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // Listener.verify verifies the certificates instead
		VerifyConnection: func(state tls.ConnectionState) error {
			certificates = state.PeerCertificates
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(l.ClientCert, l.ClientKey)
			if err != nil {
				return &tls.Certificate{}, nil //nolint:nilerr // without a usable client certificate, connect without one
			}
			return &pair, nil
		},
	}}
	if len(l.Hosts) > 0 {
		dialer.Config.ServerName = l.Hosts[0]
	}
	connection, err := dialer.DialContext(ctx, "tcp", l.Address)
	if err == nil {
		_ = connection.Close()
	}
	if len(certificates) > 0 {
		return certificates, nil
	}
	return nil, err
}
