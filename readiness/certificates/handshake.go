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
	verifyAgain      = 30 * time.Second // from handshakes that failed to the next, if the files do not change
)

// Listener is a TLS listener of etcd's, as those who connect to it see it.
type Listener struct {
	Name    string   // EtcdServer or EtcdPeer
	Address string   // host and port
	Hosts   []string // that its URLs advertise

	Cert, Key             string // the files that it serves with
	CA                    string // the authorities that it trusts, and clients with it; empty if there are none
	ClientCert, ClientKey string // what to show if it asks for a certificate
}

// fingerprint identifies the content of files.
type fingerprint [sha256.Size]byte

// Serve adds the listeners of an etcd that has started to serve. From now on their certificates are verified as others verify them, by a
// handshake, and again after each change of the files.
func (f *Files) Serve(listeners []Listener) {
	f.mu.Lock()
	f.listeners = listeners
	f.mu.Unlock()
	go f.read()
}

// verifyListeners verifies the listeners' certificates if the files have changed, or if they were refused a while ago. f.reading is held.
func (f *Files) verifyListeners(found []file, now time.Time) {
	f.mu.Lock()
	listeners, failed := f.listeners, len(f.refused) > 0
	f.mu.Unlock()
	if len(listeners) == 0 {
		return
	}
	files := fingerprintOf(found, listeners)
	if files == f.verified && (!failed || now.Before(f.nextVerify)) {
		return
	}
	var refused []string
	for _, listener := range listeners {
		if err := listener.verify(now); err != nil {
			refused = append(refused, err.Error())
		}
	}
	f.verified, f.nextVerify = files, time.Now().Add(verifyAgain)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = refused
}

func fingerprintOf(found []file, listeners []Listener) fingerprint {
	hash := sha256.New()
	for _, each := range found {
		_, _ = fmt.Fprintf(hash, "%s %x\n", each.Name, each.digest)
	}
	for _, each := range listeners {
		if info, err := os.Stat(each.Key); err == nil {
			_, _ = fmt.Fprintln(hash, each.Key, info.ModTime().UnixNano(), info.Size())
		}
	}
	return fingerprint(hash.Sum(nil))
}

// verify returns why those who verify the listener's certificate cannot connect. That it has expired, or is not valid yet, is judged by
// its file.
func (l Listener) verify(now time.Time) error {
	shown, err := l.handshake()
	if err != nil {
		return fmt.Errorf("a TLS handshake with etcd's own listener %s failed: %w; see that %s and %s are a pair", l.Address, err, l.Cert, l.Key)
	}
	what, who := "etcd's server certificate "+l.Cert, "clients that verify it cannot connect"
	if l.Name == EtcdPeer {
		what, who = "etcd's peer certificate "+l.Cert, "other members cannot connect"
	}
	leaf := shown[0]
	unnamed := slices.DeleteFunc(slices.Clone(l.Hosts), func(host string) bool { return leaf.VerifyHostname(host) == nil })
	if len(unnamed) > 0 {
		return fmt.Errorf("%s is not valid for %s, which etcd advertises, so %s; issue it for this name as well", what, strings.Join(unnamed, ", "), who)
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now}
	for _, each := range shown[1:] {
		options.Intermediates.AddCert(each)
	}
	if l.CA == "" { // only its usage is left to verify
		options.Roots.AddCert(leaf)
	} else if content, err := disk.Read(l.CA, maxBytes); err != nil || !options.Roots.AppendCertsFromPEM(content) {
		return nil // etcd could not have started with it; a file that is being replaced is read again
	}
	_, err = leaf.Verify(options)
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("%s is not for servers by its extended key usage, so %s; issue it with the usage \"server auth\"", what, who)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s is not signed by the authorities in %s, so %s with these; issue it from them, or correct trusted-ca-file", what, l.CA, who)
	case err != nil:
		return fmt.Errorf("%s cannot be verified, so %s: %w", what, who, err)
	}
	return nil
}

// handshake returns the certificates that the listener shows. It need not be let in: with TLS 1.2, a listener that asks for a certificate
// refuses only after it has shown its own.
func (l Listener) handshake() (shown []*x509.Certificate, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // verify does it, and names each cause
		VerifyConnection: func(state tls.ConnectionState) error {
			shown = state.PeerCertificates
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(l.ClientCert, l.ClientKey)
			if err != nil {
				return &tls.Certificate{}, nil //nolint:nilerr // none is shown then
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
	if len(shown) > 0 {
		return shown, nil
	}
	return nil, err
}
