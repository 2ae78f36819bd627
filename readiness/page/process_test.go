package page_test

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/page"
	"etcd-wrapper/readiness/status"
)

// A process is a fake wrapper whose document is set by the test. It can be stopped and restarted on the same address.
type process struct {
	t       *testing.T
	address string
	server  *http.Server
	end     context.CancelFunc // ends open streams

	mu      sync.Mutex
	current status.Document
	changed chan struct{}
}

func newProcess(t *testing.T, first status.Document) *process {
	p := &process{t: t, address: "127.0.0.1:0", current: first, changed: make(chan struct{})}
	p.start()
	t.Cleanup(func() { p.kill() })
	return p
}

func (p *process) url() string { return "http://" + p.address }

func (p *process) start() {
	listener, err := net.Listen("tcp", p.address)
	require.NoError(p.t, err)
	p.address = listener.Addr().String()
	mux := http.NewServeMux()
	for pattern, handler := range map[string]http.Handler{
		"GET /{$}": handler(), "GET /statemachine.svg": page.Diagram(lifecycle.Diagram.SVG()),
		"GET /lifecycle": status.Handler(status.Source{Document: p.document, Changed: p.change}),
	} {
		mux.Handle(pattern, handler)
	}
	lifetime, end := context.WithCancel(context.Background())
	p.end = end
	p.server = &http.Server{Handler: mux, BaseContext: func(net.Listener) context.Context { return lifetime }}
	go p.server.Serve(listener)
}

// kill closes the server and all connections.
func (p *process) kill() {
	p.server.Close()
	p.end()
}

func (p *process) document() status.Document {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current.Headline = status.HeadlineOf(p.current)
	return p.current
}

func (p *process) change() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// update changes the document and notifies the page.
func (p *process) update(change func(*status.Document)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current.Checks = slices.Clone(p.current.Checks) // copied because the previous document may still be in use
	change(&p.current)
	close(p.changed)
	p.changed = make(chan struct{})
}
