// Package peers asks the other members of a cluster on behalf of one that runs no etcd yet: whether they list it, and
// whether it may be replaced. It also makes the changes of the members that a replacement needs.
//
// Members are asked at their peer URLs, which show the members of the cluster to every holder of a peer certificate.
// Requests that need a quorum go to their client URLs. With auto-tls or without TLS any response there is trusted, as
// etcd trusts its peers then. Recovery's table makes the decisions.
package peers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"etcd-wrapper/internal/disk"
)

const (
	requestTimeout = 3 * time.Second // of a request to one member
	changeTimeout  = 10 * time.Second
	maxResponse    = 4 << 20 // bytes of a response; a page of metrics has several hundred thousand
)

// Options configure how to reach the other members, in addition to etcd's configuration.
type Options struct {
	CertFile, KeyFile string // client certificate and key; etcd's own if empty
	User, Password    string // with authentication: a user that may change the members
}

// NewOptions takes the user and password from etcdctl's environment.
func NewOptions(certFile, keyFile string) Options {
	user, password, both := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if !both {
		password = os.Getenv("ETCDCTL_PASSWORD")
	}
	return Options{CertFile: certFile, KeyFile: keyFile, User: user, Password: password}
}

// Peers are the other members of one member's cluster. Its methods must not be called concurrently.
type Peers struct {
	Options

	config    *embed.Config
	name      string
	urls      []string            // this member's peer URLs
	listens   []url.URL           // where it listens for peers
	process   string              // identifies this process
	server    *statusServer       // nil until it could listen
	others    map[string][]string // peer URLs of the others, by name
	listed    []string            // peer URLs in initial-cluster, and those that this member advertises
	hosts     map[string]bool     // their hosts, and those at which this member serves clients
	initialID uint64              // this member's ID if the cluster is founded as configured

	peer, client          *http.Client
	loadedCAs             string // contents of the CA files, as TLS reads them only once
	peerTLS               transport.TLSInfo
	anyPeer, anyServer    bool                                           // etcd makes these certificates itself and verifies none: auto-tls
	checkOwnURLs          func(ctx context.Context, urls []string) error // returns why it is unknown whether peers find the member at this process
	now                   func() time.Time
	received              map[types.ID]string // bytes that others with a connection have received from the member
	quietSince, checkedAt time.Time           // since when no process was seen with the member's data, and when that was last checked
}

// New returns the other members in etcd's configuration; nil if it names none. The error means that its certificates
// cannot be used.
func New(config *embed.Config, options Options) (*Peers, error) {
	cluster, err := types.NewURLsMap(config.InitialCluster)
	if err != nil || cluster[config.Name] == nil || len(cluster) < 2 {
		return nil, nil //nolint:nilerr,nilnil // members that are found in another way cannot be asked before etcd runs
	}
	initial, err := membership.NewClusterFromURLsMap(zap.NewNop(), config.InitialClusterToken, cluster)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // etcd reports it
	}
	p := &Peers{
		Options: options, config: config, received: map[types.ID]string{}, hosts: map[string]bool{}, others: map[string][]string{}, now: time.Now,
		name: config.Name, process: rand.Text(), urls: types.URLs(config.AdvertisePeerUrls).StringSlice(), listens: config.ListenPeerUrls,
		initialID: uint64(initial.MemberByName(config.Name).ID), peerTLS: config.PeerTLSInfo,
		anyPeer: config.PeerAutoTLS && config.PeerTLSInfo.Empty(), anyServer: config.ClientAutoTLS && config.ClientTLSInfo.Empty(),
	}
	p.checkOwnURLs = p.requestOwnURLs
	p.loadedCAs = p.readCAs()
	p.listed = slices.Concat(cluster.URLs(), p.urls)
	for _, each := range slices.Concat(p.listed, types.URLs(config.AdvertiseClientUrls).StringSlice()) {
		p.hosts[hostOf(each)] = true
	}
	for name, urls := range cluster {
		if name != config.Name {
			p.others[name] = urls.StringSlice()
		}
	}
	return p, p.dial()
}

// readCAs returns the contents of the CA files.
func (p *Peers) readCAs() (contents string) {
	for _, path := range []string{p.config.PeerTLSInfo.TrustedCAFile, p.config.ClientTLSInfo.TrustedCAFile} {
		content, _ := disk.Read(path, maxResponse) // an unreadable file is reported where it is used
		contents += string(content)
	}
	return contents
}

// reloadCAs connects with CA files that were replaced. An unusable file is tried again.
func (p *Peers) reloadCAs() {
	if current := p.readCAs(); current != p.loadedCAs && p.dial() == nil {
		p.loadedCAs = current
		p.Close() // the listener uses them, too
	}
}

// hostOf returns the host of a URL; empty if it has none.
func hostOf(raw string) string {
	parsed, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

// dial creates the clients: one as a peer, one as a client of etcd.
func (p *Peers) dial() error {
	p.peerTLS.InsecureSkipVerify = p.anyPeer
	peer, err := newClient(p.peerTLS)
	if err != nil {
		return fmt.Errorf("cannot use the certificates for peers: %w", err)
	}
	etcd := p.config.ClientTLSInfo
	pair := transport.TLSInfo{CertFile: etcd.CertFile, KeyFile: etcd.KeyFile, TrustedCAFile: etcd.TrustedCAFile, InsecureSkipVerify: p.anyServer}
	if etcd.ClientCertFile != "" {
		pair.CertFile, pair.KeyFile = etcd.ClientCertFile, etcd.ClientKeyFile
	}
	if p.CertFile != "" {
		pair.CertFile, pair.KeyFile = p.CertFile, p.KeyFile
	}
	client, err := newClient(pair)
	if err != nil {
		return fmt.Errorf("cannot use the certificates for clients: %w", err)
	}
	p.peer, p.client = peer, client
	return nil
}

// newClient returns a client that follows no redirect: another server is not the member that was asked.
func newClient(info transport.TLSInfo) (*http.Client, error) {
	roundTripper, err := transport.NewTransport(info, requestTimeout)
	if err != nil {
		return nil, err
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: roundTripper, Timeout: requestTimeout, CheckRedirect: stay}, nil
}

// Close releases connections, and the address that etcd needs.
func (p *Peers) Close() {
	if p.server != nil {
		p.server.close()
		p.server = nil
	}
	p.peer.CloseIdleConnections()
	p.client.CloseIdleConnections()
}

// newSelfSignedCertificate returns a certificate as etcd makes itself with auto-tls. It encrypts and proves nothing, so it is not
// stored and has no name.
func newSelfSignedCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, err
}
