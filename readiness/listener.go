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

// A dualListener wraps a bound listener. Each connection uses the protocol that is configured when it is accepted,
// initially plain HTTP. Clients on loopback may always use plain HTTP on the same port, so that `etcd-wrapper
// status`, kubectl port-forward and users in the pod need no certificates.
type dualListener struct {
	net.Listener
	config atomic.Pointer[tls.Config] // plainHTTP, or nil, for plain HTTP
	errors *stdlog.Logger
}

var plainHTTP = new(tls.Config)

// tls returns the configuration of new connections, or nil for plain HTTP.
func (l *dualListener) tls() *tls.Config {
	if config := l.config.Load(); config != plainHTTP {
		return config
	}
	return nil
}

// Accept implements net.Listener. It leaves the handshake to the connection's own goroutine, so a slow client delays
// only itself.
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

// A localConn is a connection whose first byte chooses the protocol. Until that byte is read, the connection can only
// be read or closed. net/http applies the same deadline to the handshake and to the request header that follows.
type localConn struct {
	*tls.Conn // wraps plain
	plain     bufferedConn
	errors    *stdlog.Logger

	started, isPlain bool // set by the first Read, which net/http completes before any other read or write
}

// recordTypeHandshake is the first byte of a TLS connection (RFC 8446, 5.1).
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

// A bufferedConn is a connection whose next bytes can be peeked at.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c bufferedConn) Read(into []byte) (int, error) { return c.reader.Read(into) }

// A keyPair is a certificate and its key, which are read from two files at every handshake, as etcd reads its own, so
// a rotation needs no restart. It compares contents rather than times, because a rotation swaps symbolic links and
// file times are coarse.
type keyPair struct {
	certFile, keyFile string
	log               zerolog.Logger

	mu        sync.Mutex
	cert, key []byte           // contents of the files from which good was loaded
	good      *tls.Certificate // newest pair that could be loaded
	trouble   string           // why the files currently cannot be loaded, or ""
}

func loadKeyPair(certFile, keyFile string, log zerolog.Logger) (*keyPair, error) {
	p := &keyPair{certFile: certFile, keyFile: keyFile, log: log}
	if err := p.reload(); err != nil {
		return nil, err
	}
	return p, nil
}

// config returns a TLS configuration that requests no client certificate: the kubelet has none.
func (p *keyPair) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: p.certificate,
	}
}

// certificate returns the newest good pair, because missing or half-written files must not interrupt the service.
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
		return fmt.Errorf("cannot read the server certificate's key %q: %w", p.keyFile, err)
	}
	if p.good != nil && bytes.Equal(cert, p.cert) && bytes.Equal(key, p.key) {
		return nil
	}
	loaded, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("cannot use the server certificate %q with key %q: %w", p.certFile, p.keyFile, err)
	}
	if p.good != nil {
		p.log.Info().Str("certificate", p.certFile).Msg("server certificate was renewed")
	}
	p.cert, p.key, p.good = cert, key, &loaded
	return nil
}

// note logs an error once instead of at every handshake.
func (p *keyPair) note(err error) {
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	if trouble != "" && trouble != p.trouble {
		p.log.Error().Err(err).Msg("cannot renew the server certificate; the last good one stays in use")
	}
	p.trouble = trouble
}

// temporaryName is the common name of the temporary certificate.
const temporaryName = "etcd-wrapper, until etcd's certificate is known"

// temporaryConfig returns a TLS configuration with a self-signed certificate that exists only in memory. No client
// can verify it, but a kubelet does not verify certificates, so its probes get the reason why the member is unready
// while the real certificate is unknown.
func temporaryConfig() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key for a temporary certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: temporaryName},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0), // long enough for a slow validation or an unavailable sidecar
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a temporary certificate: %w", err)
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair}}, nil
}
