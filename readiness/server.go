// Package readiness serves the wrapper's HTTP port: /readyz, /livez, POST /stop and POST /defrag. Its Monitor checks,
// inside the process, whether clients may use the embedded etcd.
//
// The Monitor owns the results. One goroutine watches etcd and publishes an immutable Report. The server replies from
// memory, so probes put no load on raft. /readyz replies 200 only if the lifecycle is Serving and a linearizable read
// that started within the last 3 s has succeeded. The age is computed for each reply, so a stalled Monitor cannot
// stay ready.
//
// Packages below this one have the other endpoints: status (GET /lifecycle), metrics (GET /metrics) and page (GET /).
// The command adds their handlers through Options.Routes.
//
// The server answers on its port for the whole life of the process. If TLS is expected, it starts with a temporary
// certificate until the real one is known. On loopback it always accepts plain HTTP as well, so that every container
// of the pod can use one port without certificates. A socket on the volume would serve the same purpose, but the
// volume may hang or be read-only just when an operator needs the status.
//
// Only the command uses this package. The package imports neither the lifecycle nor etcd: the command adapts both
// through Options and Target.
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
	headerTimeout  = 5 * time.Second  // for a request's header, and for the TLS handshake
	requestTimeout = 5 * time.Second  // for a whole request, whose body is discarded
	replyTimeout   = 10 * time.Second // for a reply; longer than requestTimeout, which may pass before the reply
	idleTimeout    = 30 * time.Second // between two requests on a connection
	maxHeaderBytes = 8 << 10
	// maxConnections limits the memory that clients can use: each connection costs about 20 KB.
	maxConnections = 256
)

// Phase is the part of the lifecycle's state that the server needs.
type Phase struct {
	State   string    // name of the state
	Since   time.Time // start of the state
	Serving bool      // reports whether the lifecycle permits the use of etcd
	Reason  string    // a sentence that explains the state
}

// Options configures a Server. All fields but Routes are required.
type Options struct {
	Address string       // host:port to bind
	Phase   func() Phase // returns the current phase from memory; called concurrently, once per request of /readyz
	// Stop requests a stop from the lifecycle. It is called once per POST /stop, after the reply was flushed,
	// possibly concurrently. It must not wait for Shutdown, which waits for it.
	Stop func()
	// Defragment starts a defragmentation of the database and returns immediately; its error explains why none can
	// start now. It may be called concurrently.
	Defragment func() error
	Routes     map[string]http.Handler // other handlers, by net/http pattern; their requests' contexts end at Shutdown
	Log        zerolog.Logger
}

// A Server serves the wrapper's port, which it holds from Listen to Shutdown.
type Server struct {
	listener *dualListener
	http     *http.Server
	end      context.CancelFunc // cancels requests that would not end on their own, such as streams
	log      zerolog.Logger
}

// Listen binds the port. Connections wait there, unaccepted, until Serve runs. The server uses plain HTTP until one
// of the Use methods is called. The error names the address.
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

// Addr returns the bound address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve accepts connections until Shutdown, and then returns nil. The owner runs it in a goroutine, once. An error
// means that the port can no longer be served.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve on %s: %w", s.Addr(), err)
	}
	return nil
}

// UseHTTP makes new connections plain HTTP. It is safe for concurrent use.
func (s *Server) UseHTTP() {
	if s.listener.config.Swap(plainHTTP) != plainHTTP {
		s.log.Info().Stringer("address", s.Addr()).Msg("serving plain HTTP")
	}
}

// UseTemporary makes new connections HTTPS with a temporary certificate, while TLS is expected and the real
// certificate is unknown. Call it before Serve.
func (s *Server) UseTemporary() error {
	config, err := temporaryConfig()
	if err != nil {
		return err
	}
	s.listener.config.Store(config)
	s.log.Info().Stringer("address", s.Addr()).
		Msg("serving HTTPS with a temporary certificate until etcd's is known, and plain HTTP on loopback")
	return nil
}

// UseTLS makes new connections HTTPS with the certificate and key in these files, which are read again at every
// handshake. Clients on loopback may still use plain HTTP. Other open plain connections end with their next reply, or
// after 30 s. UseTLS fails only if the files cannot be used now, which may be temporary; the error names them, and
// the protocol does not change. It is safe for concurrent use.
func (s *Server) UseTLS(certFile, keyFile string) error {
	p, err := loadKeyPair(certFile, keyFile, s.log)
	if err != nil {
		return err
	}
	s.listener.config.Store(p.config())
	s.log.Info().Stringer("address", s.Addr()).Str("certificate", certFile).Msg("serving HTTPS")
	return nil
}

// Shutdown closes the port, ends streams and waits for requests in progress, and up to 5 s for clients that have
// connected but sent nothing. If ctx is done first, Shutdown closes their connections and returns ctx's error,
// wrapped. The owner calls it once, even if Serve never ran.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	defer s.listener.Close() // http.Server closes the listener only if Serve was called
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("cannot end the connections to %s in order: %w", s.Addr(), err)
	}
	return nil
}

// closeOldConnections closes a remote connection of the previous protocol with its next reply. Closing it earlier
// could break a POST /stop in progress, which makes its sender, the sidecar, exit.
func (s *Server) closeOldConnections(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if overTLS := r.TLS != nil; overTLS != (s.listener.tls() != nil) && !onLoopback(r.RemoteAddr) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// connectionErrors logs net/http's messages about connections, mostly failed handshakes.
type connectionErrors struct{ log zerolog.Logger }

func (c connectionErrors) Write(line []byte) (int, error) {
	c.log.Warn().Str("cause", printable.Line(string(line))).Msg("a connection to the wrapper's server failed")
	return len(line), nil
}

// rateLimit limits a log to ten lines per minute, so that clients cannot flood it.
func rateLimit(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Minute})
}

// A connectionLimiter limits the number of open connections. Beyond the limit it still accepts a new connection,
// because it may be the kubelet's, and closes the one that has been idle longest. Only if all others have a request
// in progress does it close the new connection.
type connectionLimiter struct {
	limit int

	mu      sync.Mutex
	all     map[net.Conn]*list.Element // nil while a request is in progress
	waiting *list.List                 // connections without a request, oldest first
}

func newConnectionLimiter(limit int) *connectionLimiter {
	return &connectionLimiter{limit: limit, all: map[net.Conn]*list.Element{}, waiting: list.New()}
}

// change implements http.Server's ConnState.
func (c *connectionLimiter) change(conn net.Conn, to http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if place := c.all[conn]; place != nil {
		c.waiting.Remove(place)
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

// closeOldest closes the connection that has been idle longest. It closes the connection below TLS, because sending
// close_notify could block.
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
	_ = conn.Close() // the server notices it and cleans up
}
