package readiness

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	stdlog "log"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/disk"
)

// A dualListener serves both HTTP and HTTPS on one port. Each connection uses the protocol that was configured when
// it was accepted; initially, that is HTTP. Clients on loopback may always use HTTP, so that `etcd-wrapper status`,
// kubectl port-forward and users in the pod need no certificates.
type dualListener struct {
	net.Listener
	config atomic.Pointer[tls.Config] // nil (initially) or plainHTTP for HTTP
	errors *stdlog.Logger
}

// plainHTTP is the value of config after UseHTTP.
var plainHTTP = new(tls.Config)

// tls returns the TLS configuration for new connections, or nil for HTTP.
func (l *dualListener) tls() *tls.Config {
	if config := l.config.Load(); config != plainHTTP {
		return config
	}
	return nil
}

// Accept implements net.Listener. TLS handshakes run later, in the goroutines of the connections, so a slow client
// does not block others.
func (l *dualListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	config := l.tls()
	switch {
	case err != nil || config == nil:
		return conn, err
	case onLoopback(conn.RemoteAddr().String()):
		plain := bufferedConn{conn, bufio.NewReader(conn)}
		return &localConn{Conn: tls.Server(plain, config), plain: plain, errors: l.errors}, nil
	default:
		return tls.Server(conn, config), nil
	}
}

// A localConn is a connection whose first byte determines its protocol. Until that byte arrives, the connection can
// only be read or closed. The handshake is subject to the deadline that net/http sets for the request header.
type localConn struct {
	*tls.Conn // wraps plain
	plain     bufferedConn
	errors    *stdlog.Logger

	started, isPlain bool // set by the first Read; net/http does not use the connection concurrently
}

// recordTypeHandshake is the first byte of a TLS connection (RFC 8446, section 5.1).
const recordTypeHandshake = 22

// Read implements net.Conn.
func (c *localConn) Read(into []byte) (int, error) {
	if !c.started {
		first, err := c.plain.reader.Peek(1)
		if err != nil {
			return 0, err
		}
		c.started, c.isPlain = true, first[0] != recordTypeHandshake
		if !c.isPlain {
			if err := c.Handshake(); err != nil {
				c.errors.Printf("TLS handshake error from %s: %v", c.RemoteAddr(), err)
			}
		}
	}
	if c.isPlain {
		return c.plain.Read(into)
	}
	return c.Conn.Read(into)
}

// Write implements net.Conn.
func (c *localConn) Write(from []byte) (int, error) {
	if c.isPlain {
		return c.plain.Write(from)
	}
	return c.Conn.Write(from)
}

// A bufferedConn is a connection with a buffered reader, so that the first byte can be peeked at.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c bufferedConn) Read(into []byte) (int, error) { return c.reader.Read(into) }

// A keyPair is a certificate and its key. As in etcd, both files are reread for every handshake, so a rotation does
// not require a restart. Changes are detected by content, because modification times are too coarse and a rotation
// replaces symbolic links.
type keyPair struct {
	certFile, keyFile string
	log               zerolog.Logger

	mu        sync.Mutex
	cert, key []byte           // file contents from which good was loaded
	good      *tls.Certificate // last valid pair
	lastError string           // last logged error; "" after a successful reload
}

func loadKeyPair(certFile, keyFile string, log zerolog.Logger) (*keyPair, error) {
	p := &keyPair{certFile: certFile, keyFile: keyFile, log: log}
	if err := p.reload(); err != nil {
		return nil, err
	}
	return p, nil
}

// config returns a TLS configuration that does not request a client certificate, because the kubelet has none.
func (p *keyPair) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: p.certificate,
	}
}

// certificate returns the pair in the files, or the last valid pair if they are missing or only partially written.
func (p *keyPair) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(p.reload())
	return p.good, nil
}

func (p *keyPair) reload() error {
	cert, err := disk.ReadCertificates(p.certFile)
	if err != nil {
		return fmt.Errorf("cannot read the server certificate %q: %w", p.certFile, err)
	}
	key, err := disk.ReadCertificates(p.keyFile)
	if err != nil {
		return fmt.Errorf("cannot read the server key %q: %w", p.keyFile, err)
	}
	if p.good != nil && bytes.Equal(cert, p.cert) && bytes.Equal(key, p.key) {
		return nil
	}
	loaded, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("cannot use the server certificate %q with key %q: %w", p.certFile, p.keyFile, err)
	}
	if p.good != nil {
		p.log.Info().Str("certificate", p.certFile).Msg("reloaded the server certificate")
	}
	p.cert, p.key, p.good = cert, key, &loaded
	return nil
}

// note logs the error of a reload, unless the previous reload failed with the same error.
func (p *keyPair) note(err error) {
	message := ""
	if err != nil {
		message = err.Error()
	}
	if message != "" && message != p.lastError {
		p.log.Error().Err(err).Msg("cannot reload the server certificate; keeping the last valid one")
	}
	p.lastError = message
}

// temporaryName is the common name of the temporary certificate.
const temporaryName = "etcd-wrapper temporary certificate"

// temporaryConfig returns a TLS configuration with a self-signed certificate. No client can verify it, but kubelet
// probes do not verify certificates, so they can still report why the member is not ready.
func temporaryConfig() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot generate a key for the temporary certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: temporaryName},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0), // longer than any validation or sidecar outage
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot create the temporary certificate: %w", err)
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair}}, nil
}
