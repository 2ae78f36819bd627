package peers

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// statusPath is the path at which a member that runs no etcd yet reports its status, to the others and to itself. etcd
// does not use it.
const statusPath = "/etcd-wrapper/call"

// A statusServer answers at this member's peer address while it asks the others. Every other request is answered as
// unavailable, so that rafthttp tries again.
type statusServer struct {
	http.Server
	serving sync.WaitGroup
	status  atomic.Pointer[Status]
}

func (s *statusServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != statusPath {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(s.status.Load()) // the caller has disconnected
}

// Publish reports the state of this member to the others, as Query does.
func (p *Peers) Publish(self Self) { _ = p.publish(self) } // without a listener the others do not learn it

// publish starts to answer if that is possible by now. The error is the reason if it is not.
func (p *Peers) publish(self Self) error {
	if err := p.serve(); err != nil {
		return err
	}
	p.server.status.Store(&Status{
		Name: p.name, Process: p.process, Cluster: formatID(self.ClusterID), Volume: self.Volume, Restore: self.Restore, Uploaded: self.Uploaded,
	})
	return nil
}

func (p *Peers) serve() error {
	if p.server != nil {
		return nil
	}
	s := &statusServer{}
	s.status.Store(&Status{Name: p.name, Process: p.process})
	s.Handler, s.ReadHeaderTimeout, s.ErrorLog = s, requestTimeout, log.New(io.Discard, "", 0)
	for _, each := range p.listens {
		listener, err := p.listen(each)
		if err != nil {
			s.close()
			return fmt.Errorf("this member cannot listen for its peers: %w", err)
		}
		s.serving.Go(func() { _ = s.Serve(listener) }) // ends with the server
	}
	p.server = s
	return nil
}

// listen listens as etcd will: with auto-tls, with a self-signed certificate.
func (p *Peers) listen(address url.URL) (net.Listener, error) {
	plain, speaksTLS := strings.CutSuffix(address.Scheme, "s")
	if !p.anyPeer || !speaksTLS {
		info := p.peerTLS
		return transport.NewListener(address.Host, address.Scheme, &info)
	}
	certificate, err := newSelfSignedCertificate()
	if err != nil {
		return nil, err
	}
	listener, err := transport.NewListener(address.Host, plain, nil)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}), nil
}

func (s *statusServer) close() {
	_ = s.Close() // no response is lost
	s.serving.Wait()
}

// requestOwnURLs checks that the peer URLs of this member, from the configuration and from the others, lead to this process.
func (p *Peers) requestOwnURLs(ctx context.Context, urls []string) error {
	if err := p.serve(); err != nil {
		return err
	}
	for _, url := range urls {
		var status Status
		if _, err := p.fetch(ctx, p.peer, url+statusPath, &status); err != nil {
			return fmt.Errorf("this member does not reach itself where its peers do: %w", err)
		}
		if status.Process != p.process {
			return fmt.Errorf("another process answers at %s", url)
		}
	}
	return nil
}
