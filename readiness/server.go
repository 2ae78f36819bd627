package readiness

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
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
	// maxConnections bounds what strangers can make the process hold: each connection costs it some 20 KB.
	maxConnections = 256
)

// Phase is what the server needs to know of the lifecycle.
type Phase struct {
	State   string    // the state's name
	Since   time.Time // when it was entered
	Serving bool      // etcd may be used, as far as the lifecycle is concerned
	Reason  string    // a sentence: why this state
}

// Options of the server. All but StopFromAnywhere and Routes are required.
type Options struct {
	Address string       // host:port to bind
	Phase   func() Phase // answers from memory; called by many goroutines, once per request of /readyz
	// Stop asks the lifecycle to stop. It is called once per POST /stop, after the reply was flushed, possibly by
	// several goroutines at once. It must not wait for Shutdown, which waits for it.
	Stop func()
	// Defragment has the database defragmented and returns at once; the error says why it cannot be now. Called like Stop.
	Defragment       func() error
	StopFromAnywhere bool                    // accept POST /stop from clients that are not on loopback too
	Routes           map[string]http.Handler // what else is served, by net/http's patterns; their requests' contexts end at Shutdown
	Log              zerolog.Logger
}

// Server answers for the wrapper on one port, which it holds from Listen to Shutdown.
type Server struct {
	gate *gate
	http *http.Server
	end  context.CancelFunc // ends requests that would not end by themselves
	log  zerolog.Logger
}

// Listen binds the port at once. Connections wait there, unaccepted, until Serve runs. It speaks plain HTTP until one of
// the Use methods was called. The error names the address.
func Listen(o Options, m *Monitor) (*Server, error) {
	bound, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", o.Address, err)
	}
	lifetime, end := context.WithCancel(context.Background())
	s := &Server{gate: newGate(bound), end: end, log: o.Log}
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
func (s *Server) Addr() net.Addr { return s.gate.Addr() }

// Serve accepts connections until Shutdown, and then returns nil. The owner runs it in a goroutine, once. An error means
// that the port cannot be served any longer.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.gate); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve on %s: %w", s.Addr(), err)
	}
	return nil
}

// UsePlain makes new connections plain HTTP. Any goroutine may call it, at any time.
func (s *Server) UsePlain() {
	if s.gate.use(&protocol{}) {
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
	s.gate.use(&protocol{tls: config})
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
	s.gate.use(&protocol{tls: p.config()})
	s.log.Info().Stringer("address", s.Addr()).Str("certificate", certFile).Msg("serving HTTPS")
	return nil
}

// Shutdown closes the port, ends streams and waits for requests being answered, and up to 5 s for clients that have
// connected but sent nothing. When ctx ends first, it cuts their connections and returns ctx's error, wrapped. The owner
// calls it once, also if Serve never ran.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	defer s.gate.Close() // http.Server knows of the listener only if Serve ran
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
		if overTLS := r.TLS != nil; overTLS != s.gate.usesTLS() && (overTLS || !onLoopback(r.RemoteAddr)) {
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

// sparingly keeps strangers on the network from filling the log: at most ten lines a minute.
func sparingly(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Minute})
}
