// Package peers is what a member that does not run yet can learn from the other members of its cluster, and ask of them:
// whether they know it, whether it may be replaced, and the two changes of the cluster's members that replacing takes.
//
// Members are asked over their peer URLs, which tell anybody with a peer's certificate who is in the cluster; what needs a
// vote goes to their client URLs. With auto-tls or without TLS whoever answers there is believed, as etcd believes its peers then.
// Nothing here decides: recovery's table does.
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
	answerSize   = 4 << 20 // bytes of an answer that are read; a page of metrics has some hundred thousand
)

// Options are what reaches the other members beside etcd's configuration.
type Options struct {
	CertFile, KeyFile string // a client's pair; etcd's own if they are empty
	User, Password    string // with authentication on: who may change the members
}

// OptionsOf takes user and password from etcdctl's environment.
func OptionsOf(certFile, keyFile string) Options {
	user, password, both := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if !both {
		password = os.Getenv("ETCDCTL_PASSWORD")
	}
	return Options{CertFile: certFile, KeyFile: keyFile, User: user, Password: password}
}

// Peers are the other members of one member's cluster. One question at a time may be asked.
type Peers struct {
	Options

	config   *embed.Config
	name     string
	urls     []string            // this member's peer URLs
	listens  []url.URL           // where it listens for peers
	process  string              // tells this process from others
	desk     *desk               // that answers there; nil before it could listen
	others   map[string][]string // the peer URLs of the others, by name
	listed   []string            // the peer URLs that initial-cluster names, and those that this member advertises
	hosts    map[string]bool     // their hosts, and those at which this member serves clients
	founding uint64              // the id that this member has if the cluster is founded as configured

	peer, client       *http.Client
	trusted            string // the authorities that they go by: TLS reads them once
	peerTLS            transport.TLSInfo
	clientTLS          *tls.Config
	anyPeer, anyServer bool                                           // etcd makes certificates for peers, or for clients, and verifies none: auto-tls
	answersHere        func(ctx context.Context, urls []string) error // why it is not known that this process is where peers find the member
	now                func() time.Time
	heard              map[types.ID]string // how many bytes others with a connection to the member had from it
	quietSince, looked time.Time           // since when nobody was seen to have the member's data, and when that was last looked at
}

// Of finds the other members in etcd's configuration. It returns nil if it names none. The error says that certificates that it
// names cannot be used.
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

// authorities are what certificates are verified by, as the files have them now.
func (p *Peers) authorities() (found string) {
	for _, path := range []string{p.config.PeerTLSInfo.TrustedCAFile, p.config.ClientTLSInfo.TrustedCAFile} {
		content, _ := disk.Read(path, answerSize) // whoever needs it says that it cannot be read
		found += string(content)
	}
	return found
}

// hostOf is the host that a URL names; empty if it names none.
func hostOf(at string) string {
	parsed, err := url.Parse(at)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

// dial makes the clients: one as a peer, one as etcd's clients.
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

// renew has authorities count that were replaced since. What cannot be used yet is tried again.
func (p *Peers) renew() {
	now := p.authorities()
	if now == p.trusted || p.dial() != nil {
		return
	}
	p.trusted = now
	p.Close() // it listens with them, too
}

// stay has nobody sent elsewhere: who answers there is no member that was asked.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close lets go of connections, and of the address that etcd needs.
func (p *Peers) Close() {
	if p.desk != nil {
		p.desk.close()
		p.desk = nil
	}
	p.peer.CloseIdleConnections()
	p.client.CloseIdleConnections()
}

// selfMade makes a certificate as etcd makes itself one where auto-tls is on. It hides what is said and proves nothing, so it
// is not kept, and names nobody.
func selfMade() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, err
}
