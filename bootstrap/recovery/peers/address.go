package peers

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// asksForSelf is the path that a member asks itself by.
const asksForSelf = "/etcd-wrapper/self"

// findSelf listens for a moment where etcd will, and asks its own peer URLs: the error says that peers find this member
// somewhere else, or not at all. Whatever else it is asked meanwhile it is not available for.
func (p *Peers) findSelf(ctx context.Context) error {
	word := rand.Text()
	served := http.NewServeMux()
	served.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	served.HandleFunc("GET "+asksForSelf, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, word) // who hung up does not want it
	})
	end, err := p.serve(served)
	defer end()
	if err != nil {
		return fmt.Errorf("this member cannot listen for its peers: %w", err)
	}
	for _, at := range p.urls {
		var told string
		if _, err := p.fetch(ctx, p.peer, at+asksForSelf, &told); err != nil {
			return fmt.Errorf("this member does not reach itself where its peers do: %w", err)
		}
		if told != word {
			return fmt.Errorf("another process answers at %s", at)
		}
	}
	return nil
}

// serve answers where etcd will listen for its peers until end is called.
func (p *Peers) serve(handler http.Handler) (end func(), err error) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: answerWithin, IdleTimeout: time.Second}
	served := make(chan struct{}, len(p.listens))
	begun := 0
	end = func() {
		_ = server.Close() // nothing is lost
		for range begun {
			<-served
		}
	}
	for _, at := range p.listens {
		listener, err := p.listen(at)
		if err != nil {
			return end, err
		}
		begun++
		go func() {
			_ = server.Serve(listener) // it ends with the server
			served <- struct{}{}
		}()
	}
	return end, nil
}

func (p *Peers) listen(at url.URL) (net.Listener, error) {
	info := p.peerTLS
	return transport.NewListener(at.Host, at.Scheme, &info)
}
