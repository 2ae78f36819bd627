// Package readiness is the wrapper's face to the outside: the HTTP server with /readyz, /livez, POST /stop and POST /defrag,
// and the Monitor that knows from inside the process whether the embedded etcd may be used.
//
// The Monitor owns the findings. One goroutine watches etcd and publishes an immutable Report; the server answers from
// that memory, so that no prober can put load on raft. /readyz says 200 only while the lifecycle is Serving and a
// linearizable read that started within the last 3 s has succeeded. The age is computed when the answer is given, so a
// Monitor that stalls cannot stay green.
//
// Other endpoints are packages below: status (GET /lifecycle), metrics (GET /metrics) and page (GET /). They are
// handlers that the command adds to the server by Options.Routes.
//
// The server answers on its port from the first instant to the end. Where TLS is expected it begins with a certificate of
// its own making, until the real one is known. On loopback it understands plain HTTP as well, always: one port that
// everybody in the pod can ask without certificates. A socket on the volume was the other way to
// that; it would depend on the volume, which is what may hang or be read-only when somebody asks.
//
// Only the command calls this package. It imports neither the lifecycle nor etcd: the command adapts both, by Options
// and by Target.
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
	headerTimeout  = 5 * time.Second  // to send a request's header, and to shake hands over TLS
	requestTimeout = 5 * time.Second  // to send a whole request; its body is read and dropped
	replyTimeout   = 10 * time.Second // to take a reply; longer than requestTimeout, which may be spent before replying
	idleTimeout    = 30 * time.Second // to send the next request on the same connection
	maxHeaderBytes = 8 << 10
	// maxConnections bounds what clients can make the process hold: each connection costs some 20 KB.
	maxConnections = 256
)

// Phase is what the server needs to know of the lifecycle.
type Phase struct {
	State   string    // the state's name
	Since   time.Time // when it was entered
	Serving bool      // etcd may be used, as far as the lifecycle is concerned
	Reason  string    // a sentence: why this state
}

// Options of the server. All but Routes are required.
type Options struct {
	Address string       // host:port to bind
	Phase   func() Phase // answers from memory; called by many goroutines, once per request of /readyz
	// Stop asks the lifecycle to stop. It is called once per POST /stop, after the reply was flushed, possibly by
	// several goroutines at once. It must not wait for Shutdown, which waits for it.
	Stop func()
	// Defragment has the database defragmented and returns at once; the error says why it cannot be now. Called like Stop.
	Defragment func() error
	Routes     map[string]http.Handler // what else is served, by net/http's patterns; their requests' contexts end at Shutdown
	Log        zerolog.Logger
}

// Server answers for the wrapper on one port, which it holds from Listen to Shutdown.
type Server struct {
	listener *dualListener
	http     *http.Server
	end      context.CancelFunc // ends requests that would not end by themselves
	log      zerolog.Logger
}

// Listen binds the port at once. Connections wait there, unaccepted, until Serve runs. It speaks plain HTTP until one of
// the Use methods was called. The error names the address.
func Listen(o Options, m *Monitor) (*Server, error) {
	bound, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", o.Address, err)
	}
	lifetime, end := context.WithCancel(context.Background())
	s := &Server{listener: newListener(bound), end: end, log: o.Log}
	s.http = &http.Server{
		Handler:                      s.closeOutdated(routes(o, m)),
		Protocols:                    new(http.Protocols),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		ReadTimeout:                  requestTimeout,
		WriteTimeout:                 replyTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		ConnState:                    newCrowd(maxConnections).change,
		BaseContext:                  func(net.Listener) context.Context { return lifetime },
		ErrorLog:                     stdlog.New(complaints{sparingly(o.Log)}, "", 0),
	}
	s.http.Protocols.SetHTTP1(true)
	return s, nil
}

// Addr is the address that is bound.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve accepts connections until Shutdown, and then returns nil. The owner runs it in a goroutine, once. An error means
// that the port cannot be served any longer.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve on %s: %w", s.Addr(), err)
	}
	return nil
}

// UsePlain makes new connections plain HTTP. Any goroutine may call it, at any time.
func (s *Server) UsePlain() {
	if s.listener.use(&protocol{}) {
		s.log.Info().Stringer("address", s.Addr()).Msg("serving plain HTTP")
	}
}

// UseTemporary makes new connections HTTPS with a certificate made up for the moment: for the time in which TLS is expected
// and the certificate is not known yet. Call it before Serve.
func (s *Server) UseTemporary() error {
	config, err := temporaryConfig()
	if err != nil {
		return err
	}
	s.listener.use(&protocol{tls: config})
	s.log.Info().Stringer("address", s.Addr()).
		Msg("serving HTTPS with a temporary certificate until etcd's is known, and plain HTTP on loopback")
	return nil
}

// UseTLS makes new connections HTTPS with the certificate and key in these files, which are read again at every handshake.
// Clients on loopback may speak plain HTTP all the same. Other plain connections that are still open end with their next
// reply, or after 30 s. It fails only if the files cannot be used now, which may pass, and names them; the protocol is then
// unchanged. Any goroutine may call it, at any time.
func (s *Server) UseTLS(certFile, keyFile string) error {
	p, err := loadKeyPair(certFile, keyFile, s.log)
	if err != nil {
		return err
	}
	s.listener.use(&protocol{tls: p.config()})
	s.log.Info().Stringer("address", s.Addr()).Str("certificate", certFile).Msg("serving HTTPS")
	return nil
}

// Shutdown closes the port, ends streams and waits for requests being answered, and up to 5 s for clients that have
// connected but sent nothing. When ctx ends first, it cuts their connections and returns ctx's error, wrapped. The owner
// calls it once, also if Serve never ran.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	defer s.listener.Close() // http.Server knows of the listener only if Serve ran
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("cannot end the connections to %s in order: %w", s.Addr(), err)
	}
	return nil
}

// closeOutdated lets a connection that was opened under another protocol end with its next reply. Closing it from here
// could break a POST /stop on its way, which its sender, the sidecar, takes for fatal.
func (s *Server) closeOutdated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if overTLS := r.TLS != nil; overTLS != s.listener.usesTLS() && (overTLS || !onLoopback(r.RemoteAddr)) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// complaints takes what net/http has to say about connections: failed handshakes, mostly.
type complaints struct{ log zerolog.Logger }

func (c complaints) Write(line []byte) (int, error) {
	c.log.Warn().Str("cause", printable.Line(string(line))).Msg("trouble with a connection to the wrapper's server")
	return len(line), nil
}

// sparingly keeps clients from filling the log: at most ten lines a minute.
func sparingly(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Minute})
}

// crowd bounds the connections that are open. One too many is let in all the same, since it may be the kubelet's: the one
// that has been waiting longest without a request goes. Only when every other connection has a request under way does
// the new one go itself.
type crowd struct {
	limit int

	mu      sync.Mutex
	all     map[net.Conn]*list.Element // nil while a request is under way
	waiting *list.List                 // connections without a request, the one that waits longest first
}

func newCrowd(limit int) *crowd {
	return &crowd{limit: limit, all: map[net.Conn]*list.Element{}, waiting: list.New()}
}

// change is called by the HTTP server.
func (c *crowd) change(conn net.Conn, to http.ConnState) {
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
	default: // closed
		delete(c.all, conn)
	}
	if len(c.all) > c.limit {
		c.sendAway()
	}
}

// sendAway closes below TLS, whose farewell could block.
func (c *crowd) sendAway() {
	longest := c.waiting.Front()
	if longest == nil {
		return
	}
	conn := c.waiting.Remove(longest).(net.Conn)
	delete(c.all, conn)
	if encrypted, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = encrypted.NetConn()
	}
	_ = conn.Close() // the server notices and forgets it
}
