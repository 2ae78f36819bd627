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

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// callPath is where a member that does not run yet says how it is, to the others and to itself. etcd has nothing there.
const callPath = "/etcd-wrapper/call"

// Call is what a member that does not run yet says of itself.
type Call struct {
	Name    string `json:"name"`
	Process string `json:"process"` // made up by each process
	Holds   Holds  `json:"holds"`
	Restore string `json:"restore,omitempty"` // the id of the restore that is asked for there
	Brought bool   `json:"brought,omitempty"` // the store has what only its volume had, as far as it can be brought there
}

// Holds is what a member has on its volume.
type Holds string

// What there can be.
const (
	Nothing  Holds = "nothing"
	Ruins    Holds = "ruins" // data that cannot be used
	Older    Holds = "older" // data that a store has more than
	Data     Holds = "data"
	Restores Holds = "restores" // data from a store, as soon as that grants it
)

// desk answers where etcd will listen for its peers, for as long as they are asked themselves. Whatever else it is asked it is
// not available for: rafthttp tries again.
type desk struct {
	server *http.Server
	ended  sync.WaitGroup

	mu   sync.Mutex
	call Call
}

func (d *desk) say(call Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call = call
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != callPath {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = json.NewEncoder(w).Encode(d.call) // who hung up does not want it
}

// Tell has the others hear, if they ask, how this member is. Ask does that, too.
func (p *Peers) Tell(self Self) {
	if err := p.open(); err == nil { // otherwise they do not hear of this member
		p.desk.say(p.call(self))
	}
}

func (p *Peers) call(self Self) Call {
	return Call{Name: p.name, Process: p.process, Holds: self.Holds, Restore: self.Restore, Brought: self.Brought}
}

// open begins to answer, if that is possible by now; the error says why it is not.
func (p *Peers) open() error {
	if p.desk != nil {
		return nil
	}
	d := &desk{call: Call{Name: p.name, Process: p.process}}
	d.server = &http.Server{Handler: d, ReadHeaderTimeout: answerWithin, ErrorLog: log.New(io.Discard, "", 0)}
	for _, at := range p.listens {
		listener, err := p.listen(at)
		if err != nil {
			d.close()
			return fmt.Errorf("this member cannot listen for its peers: %w", err)
		}
		d.ended.Go(func() { _ = d.server.Serve(listener) }) // it ends with the server
	}
	p.desk = d
	return nil
}

// listen listens as etcd will: with auto-tls, behind a certificate that nobody can tell from another one.
func (p *Peers) listen(at url.URL) (net.Listener, error) {
	plain, speaksTLS := strings.CutSuffix(at.Scheme, "s")
	if !p.anyPeer || !speaksTLS {
		info := p.peerTLS
		return transport.NewListener(at.Host, at.Scheme, &info)
	}
	certificate, err := selfMade()
	if err != nil {
		return nil, err
	}
	listener, err := transport.NewListener(at.Host, plain, nil)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}), nil
}

func (d *desk) close() {
	_ = d.server.Close() // nothing is lost
	d.ended.Wait()
}

// findSelf asks peer URLs of this member, those that it is configured with and those that the others have: the error says that
// peers find it somewhere else, or not at all.
func (p *Peers) findSelf(ctx context.Context, urls []string) error {
	if err := p.open(); err != nil {
		return err
	}
	for _, at := range urls {
		var told Call
		if _, err := p.fetch(ctx, p.peer, at+callPath, &told); err != nil {
			return fmt.Errorf("this member does not reach itself where its peers do: %w", err)
		}
		if told.Process != p.process {
			return fmt.Errorf("another process answers at %s", at)
		}
	}
	return nil
}
