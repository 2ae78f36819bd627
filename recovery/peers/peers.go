// Package peers asks the other members of a cluster on behalf of one that runs no etcd yet: whether they list it, and
// whether it may be replaced. It also makes the two changes of the members that a replacement needs.
//
// Members are asked at their peer URLs, which show the members of the cluster to every holder of a peer certificate.
// What needs a quorum goes to their client URLs. With auto-tls or without TLS any answer there is trusted, as etcd
// trusts its peers then. Nothing is decided here; see recovery's table.
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
	answerWithin = 3 * time.Second // for a question to one member
	changeWithin = 10 * time.Second
	answerSize   = 4 << 20 // maximum bytes of an answer; a page of metrics has several hundred thousand
)

// Options say how to reach the other members, in addition to etcd's configuration.
type Options struct {
	CertFile, KeyFile string // client certificate and key; etcd's own if empty
	User, Password    string // with authentication: a user that may change the members
}

// OptionsOf takes the user and password from etcdctl's environment.
func OptionsOf(certFile, keyFile string) Options {
	user, password, both := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if !both {
		password = os.Getenv("ETCDCTL_PASSWORD")
	}
	return Options{CertFile: certFile, KeyFile: keyFile, User: user, Password: password}
}

// Peers are the other members of one member's cluster. Only one question may be asked at a time.
type Peers struct {
	Options

	config   *embed.Config
	name     string
	urls     []string            // this member's peer URLs
	listens  []url.URL           // where it listens for peers
	process  string              // identifies this process
	desk     *desk               // answers there; nil until it could listen
	others   map[string][]string // peer URLs of the others, by name
	listed   []string            // peer URLs in initial-cluster, and those that this member advertises
	hosts    map[string]bool     // their hosts, and those at which this member serves clients
	founding uint64              // this member's ID if the cluster is founded as configured

	peer, client       *http.Client
	trusted            string // the trusted authorities, as TLS reads them only once
	peerTLS            transport.TLSInfo
	clientTLS          *tls.Config
	anyPeer, anyServer bool                                           // etcd makes these certificates itself and verifies none: auto-tls
	answersHere        func(ctx context.Context, urls []string) error // returns why it is unknown whether peers find the member at this process
	now                func() time.Time
	heard              map[types.ID]string // bytes that others with a connection have received from the member
	quietSince, looked time.Time           // since when no process was seen with the member's data, and when that was last checked
}

// Of returns the other members in etcd's configuration; nil if it names none. The error says that its certificates
// cannot be used.
func Of(config *embed.Config, options Options) (*Peers, error) {
	cluster, err := types.NewURLsMap(config.InitialCluster)
	if err != nil || cluster[config.Name] == nil || len(cluster) < 2 {
		return nil, nil //nolint:nilerr,nilnil // members that are found in another way cannot be asked before etcd runs
	}
	founded, err := membership.NewClusterFromURLsMap(zap.NewNop(), config.InitialClusterToken, cluster)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // etcd says it
	}
	p := &Peers{
		Options: options, config: config, heard: map[types.ID]string{}, hosts: map[string]bool{}, others: map[string][]string{}, now: time.Now,
		name: config.Name, process: rand.Text(), urls: types.URLs(config.AdvertisePeerUrls).StringSlice(), listens: config.ListenPeerUrls,
		founding: uint64(founded.MemberByName(config.Name).ID), peerTLS: config.PeerTLSInfo,
		anyPeer: config.PeerAutoTLS && config.PeerTLSInfo.Empty(), anyServer: config.ClientAutoTLS && config.ClientTLSInfo.Empty(),
	}
	p.answersHere = p.findSelf
	p.trusted = p.authorities()
	p.listed = slices.Concat(cluster.URLs(), p.urls)
	for _, at := range slices.Concat(p.listed, types.URLs(config.AdvertiseClientUrls).StringSlice()) {
		p.hosts[hostOf(at)] = true
	}
	for name, urls := range cluster {
		if name != config.Name {
			p.others[name] = urls.StringSlice()
		}
	}
	return p, p.dial()
}

// authorities returns the contents of the files of trusted authorities.
func (p *Peers) authorities() (found string) {
	for _, path := range []string{p.config.PeerTLSInfo.TrustedCAFile, p.config.ClientTLSInfo.TrustedCAFile} {
		content, _ := disk.Read(path, answerSize) // an unreadable file is reported where it is used
		found += string(content)
	}
	return found
}

// hostOf returns the host of a URL; empty if it has none.
func hostOf(at string) string {
	parsed, err := url.Parse(at)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

// dial creates the clients: one as a peer, one as a client of etcd.
func (p *Peers) dial() error {
	p.peerTLS.InsecureSkipVerify = p.anyPeer
	asPeer, err := transport.NewTransport(p.peerTLS, answerWithin)
	if err != nil {
		return fmt.Errorf("cannot use the certificates for peers: %w", err)
	}
	p.peer = &http.Client{Transport: asPeer, Timeout: answerWithin, CheckRedirect: stay}
	etcd := p.config.ClientTLSInfo
	pair := transport.TLSInfo{CertFile: etcd.CertFile, KeyFile: etcd.KeyFile, TrustedCAFile: etcd.TrustedCAFile, InsecureSkipVerify: p.anyServer}
	if etcd.ClientCertFile != "" {
		pair.CertFile, pair.KeyFile = etcd.ClientCertFile, etcd.ClientKeyFile
	}
	if p.CertFile != "" {
		pair.CertFile, pair.KeyFile = p.CertFile, p.KeyFile
	}
	asClient, err := transport.NewTransport(pair, answerWithin)
	if err != nil {
		return fmt.Errorf("cannot use the certificates for clients: %w", err)
	}
	p.client, p.clientTLS = &http.Client{Transport: asClient, Timeout: answerWithin, CheckRedirect: stay}, asClient.TLSClientConfig
	return nil
}

// renew uses authorities that were replaced. An unusable file is tried again.
func (p *Peers) renew() {
	now := p.authorities()
	if now == p.trusted || p.dial() != nil {
		return
	}
	p.trusted = now
	p.Close() // the listener uses them, too
}

// stay follows no redirect: another server is not the member that was asked.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close releases connections, and the address that etcd needs.
func (p *Peers) Close() {
	if p.desk != nil {
		p.desk.close()
		p.desk = nil
	}
	p.peer.CloseIdleConnections()
	p.client.CloseIdleConnections()
}

// selfMade returns a certificate as etcd makes itself with auto-tls. It encrypts and proves nothing, so it is not
// stored and has no name.
func selfMade() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, err
}
