// Package readiness serves the wrapper's HTTP port with the endpoints /readyz, /livez, POST /stop and POST /defrag.
// The Monitor checks whether clients can use the embedded etcd.
//
// One of the Monitor's goroutines checks etcd and publishes an immutable Report. The server replies from memory, so
// probes put no load on raft. /readyz replies with status 200 only if the lifecycle is in state Serving and a
// linearizable read that started within the last 3 s has succeeded. The age of the read is computed for each reply,
// so a stalled Monitor cannot keep the member ready.
//
// The other endpoints are implemented by subpackages: status (GET /lifecycle), metrics (GET /metrics) and page (GET
// /). Package main adds their handlers to Options.Routes.
//
// The server is available for the entire lifetime of the process. If TLS is expected, the server uses a temporary
// certificate until the real one is known. The server also accepts plain HTTP on loopback, so that all containers of
// the pod can use the port without certificates. A Unix socket on the volume would not do, because the volume may
// hang or be read-only just when an operator needs the status.
//
// The package imports neither the lifecycle nor etcd. Package main connects them to the server through Options and
// Target.
package readiness

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/printable"
)

const (
	headerTimeout  = 5 * time.Second  // for the TLS handshake and the request header
	requestTimeout = 5 * time.Second  // for an entire request, including its body, which is discarded
	replyTimeout   = 10 * time.Second // for the request and the reply
	idleTimeout    = 30 * time.Second // for an open connection between two requests
	maxHeaderBytes = 8 << 10
	// maxConnections limits the memory that clients can use. A connection uses about 20 KB.
	maxConnections = 256
)

// Phase is the current state of the lifecycle, as far as the server needs it.
type Phase struct {
	State   string    // name of the state
	Since   time.Time // when the state was entered
	Serving bool      // whether clients may use etcd in this state
	Reason  string    // explanation of the state
}

// Options configures a Server. All fields except Routes are required.
type Options struct {
	Address string       // host:port to bind
	Phase   func() Phase // returns the current phase; must not block; may be called concurrently
	// Stop requests a stop. Stop is called for each POST /stop after the reply has been sent. Stop may be called
	// concurrently and must not wait for Shutdown.
	Stop func()
	// Defragment starts a defragmentation and returns immediately. If a defragmentation cannot start now, Defragment
	// returns an error. Defragment may be called concurrently.
	Defragment func() error
	Routes     map[string]http.Handler // additional handlers by net/http pattern; Shutdown cancels their requests' contexts
	Log        zerolog.Logger
}

// A Server serves the wrapper's port.
type Server struct {
	listener *dualListener
	http     *http.Server
	end      context.CancelFunc // cancels the contexts of requests, such as streams
	log      zerolog.Logger
}

// Listen binds the port. It does not accept connections until Serve is called. The server uses plain HTTP until one
// of the Use methods is called.
func Listen(o Options, m *Monitor) (*Server, error) {
	bound, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", o.Address, err)
	}
	lifetime, end := context.WithCancel(context.Background())
	errorLog := stdlog.New(connectionErrors{rateLimit(o.Log)}, "", 0)
	s := &Server{listener: &dualListener{Listener: bound, errors: errorLog}, end: end, log: o.Log}
	s.http = &http.Server{
		Handler:                      s.closeOldConnections(routes(o, m)),
		Protocols:                    new(http.Protocols),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		ReadTimeout:                  requestTimeout,
		WriteTimeout:                 replyTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		ConnState:                    newConnectionLimiter(maxConnections).change,
		BaseContext:                  func(net.Listener) context.Context { return lifetime },
		ErrorLog:                     errorLog,
	}
	s.http.Protocols.SetHTTP1(true)
	return s, nil
}

// Addr returns the address on which the server is listening.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve accepts connections until Shutdown is called, and then returns nil. Serve must be called only once. If Serve
// returns an error, the server has failed and cannot be restarted.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve on %s: %w", s.Addr(), err)
	}
	return nil
}

// UseHTTP makes the server use plain HTTP for new connections. UseHTTP is safe for concurrent use.
func (s *Server) UseHTTP() {
	if s.listener.config.Swap(plainHTTP) != plainHTTP {
		s.log.Info().Stringer("address", s.Addr()).Msg("serving plain HTTP")
	}
}

// UseTemporary makes the server use HTTPS with a temporary certificate until the real certificate is known.
// UseTemporary must be called before Serve.
func (s *Server) UseTemporary() error {
	config, err := temporaryConfig()
	if err != nil {
		return err
	}
	s.listener.config.Store(config)
	s.log.Info().Stringer("address", s.Addr()).
		Msg("serving HTTPS with a temporary certificate until etcd's certificate is known, and plain HTTP on loopback")
	return nil
}

// UseTLS makes the server use HTTPS for new connections, with a certificate and key that are reread for every
// handshake. Clients on loopback may still use plain HTTP. Open HTTP connections from other clients are closed after
// their next reply or after 30 s. If the files cannot be used, UseTLS returns an error and the protocol does not
// change. UseTLS is safe for concurrent use.
func (s *Server) UseTLS(certFile, keyFile string) error {
	p, err := loadKeyPair(certFile, keyFile, s.log)
	if err != nil {
		return err
	}
	s.listener.config.Store(p.config())
	s.log.Info().Stringer("address", s.Addr()).Str("certificate", certFile).Msg("serving HTTPS")
	return nil
}

// Shutdown closes the port, cancels streams, and waits for requests in progress. It waits up to 5 s for clients that
// have not sent a request yet. If ctx is done first, Shutdown closes all connections and returns an error that wraps
// ctx.Err(). Shutdown must be called once, even if Serve has not been called.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	defer s.listener.Close() // http.Server closes the listener only if Serve has been called
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("cannot shut down the server on %s gracefully: %w", s.Addr(), err)
	}
	return nil
}

// closeOldConnections closes each remote connection that still uses the old protocol after its next reply. Closing it
// immediately could interrupt a POST /stop, which would make the sidecar exit.
func (s *Server) closeOldConnections(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if overTLS := r.TLS != nil; overTLS != (s.listener.tls() != nil) && !onLoopback(r.RemoteAddr) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// connectionErrors logs net/http's messages about connections, mostly about failed handshakes.
type connectionErrors struct{ log zerolog.Logger }

func (c connectionErrors) Write(line []byte) (int, error) {
	c.log.Warn().Str("cause", printable.Line(string(line))).Msg("a client connection failed")
	return len(line), nil
}

// rateLimit limits a logger to ten lines per minute, so that clients cannot flood the log.
func rateLimit(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Minute})
}

// A connectionLimiter limits the number of open connections. If there are too many, it closes the connection that has
// been idle longest rather than the new one, which may be a kubelet probe. The new connection is closed only if all
// others have a request in progress.
type connectionLimiter struct {
	limit int

	mu      sync.Mutex
	all     map[net.Conn]*list.Element // element of waiting; nil while a request is in progress
	waiting *list.List                 // connections without a request, the one that has been idle longest first
}

func newConnectionLimiter(limit int) *connectionLimiter {
	return &connectionLimiter{limit: limit, all: map[net.Conn]*list.Element{}, waiting: list.New()}
}

// change implements http.Server's ConnState.
func (c *connectionLimiter) change(conn net.Conn, to http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.all[conn]; element != nil {
		c.waiting.Remove(element)
	}
	switch to {
	case http.StateNew, http.StateIdle:
		c.all[conn] = c.waiting.PushBack(conn)
	case http.StateActive:
		c.all[conn] = nil
	default: // closed or hijacked
		delete(c.all, conn)
	}
	if len(c.all) > c.limit {
		c.closeOldest()
	}
}

// closeOldest closes the connection that has been idle longest. It closes the underlying connection, because sending
// a TLS close_notify could block.
func (c *connectionLimiter) closeOldest() {
	longest := c.waiting.Front()
	if longest == nil {
		return
	}
	conn := c.waiting.Remove(longest).(net.Conn)
	delete(c.all, conn)
	if encrypted, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = encrypted.NetConn()
	}
	_ = conn.Close() // the server detects this and cleans up
}
