package backups

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrNoAnswer reports that no wrapper answered on the port.
var ErrNoAnswer = errors.New("no answer")

// ErrNoBackups reports that the wrapper that answered makes no backups.
var ErrNoBackups = errors.New("it makes no backups: it was started without --backup-store")

// Flags is the body of GET /backup: flags of the wrapper by name, without the dashes. It has no secrets: for keys it
// has only the paths of files.
type Flags struct {
	Store       string `json:"backup-store"`
	Keep        string `json:"backup-keep"`
	Identities  string `json:"backup-identities,omitempty"`
	SigningKey  string `json:"backup-signing-key,omitempty"`
	TrustedKeys string `json:"backup-trusted-keys,omitempty"`
	VolumeDir   string `json:"volume-dir"`
}

// Backup is a full snapshot in the store, the result of backup now; -o json prints it.
type Backup struct {
	Name     string    `json:"name"`     // of the full snapshot, as in backup list
	Revision int64     `json:"revision"` // of the snapshot
	Time     time.Time `json:"time"`     // at which the database was read
	Bytes    int64     `json:"bytes"`    // in the store
}

// Print prints the backup as text, with times in the user's time zone.
func (m Backup) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "full %s of revision %d, from %s, is in the store: %s\n", m.Name, m.Revision, terminal.Moment(m.Time), terminal.Size(m.Bytes))
	return err
}

// event is a line of the response to POST /backup. The last line has Made or Error; the ones before it report
// progress.
type event struct {
	Uploaded int64   `json:"uploaded,omitempty"` // bytes of the database so far
	Of       int64   `json:"of,omitempty"`       // size of the database
	Made     *Backup `json:"made,omitempty"`
	Error    string  `json:"error,omitempty"`
}

const (
	askTimeout = 2 * time.Second  // until the response starts
	silence    = 30 * time.Second // in a response, after which the wrapper counts as gone
	maxLine    = 64 << 10         // bytes of a line of a response
)

// Client sends requests to the wrapper on this host.
type Client struct {
	port uint16
	http *http.Client
}

// NewClient returns a client for the wrapper on a port of loopback. It opens no connection yet.
func NewClient(port uint16) *Client {
	dial := status.DialLoopback(askTimeout)
	return &Client{port: port, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &idleTimeoutConn{conn}, nil
		},
		ResponseHeaderTimeout: askTimeout,
		DisableKeepAlives:     true,
	}}}
}

// idleTimeoutConn is a connection whose reads fail when it receives nothing for too long.
type idleTimeoutConn struct{ net.Conn }

func (c *idleTimeoutConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Flags returns the wrapper's flags about backups. The error wraps ErrNoAnswer or ErrNoBackups, or describes a
// response that cannot be read.
func (c *Client) Flags(ctx context.Context) (flags Flags, err error) {
	reply, err := c.send(ctx, http.MethodGet)
	if err != nil {
		return Flags{}, err
	}
	defer reply.Body.Close()
	if err := json.NewDecoder(reply.Body).Decode(&flags); err != nil {
		return Flags{}, fmt.Errorf("cannot read the answer of etcd-wrapper on port %d: %w", c.port, err)
	}
	return flags, nil
}

// Now makes the wrapper take a full snapshot and waits until it is in the store. About every second it calls uploaded
// with the number of bytes of the database that are uploaded and the total. The error wraps ErrNoAnswer or
// ErrNoBackups, or is the wrapper's own.
func (c *Client) Now(ctx context.Context, uploaded func(done, total int64)) (Backup, error) {
	reply, err := c.send(ctx, http.MethodPost)
	if err != nil {
		return Backup{}, err
	}
	defer reply.Body.Close()
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var line event
		err := json.Unmarshal(lines.Bytes(), &line)
		switch {
		case err != nil:
			return Backup{}, fmt.Errorf("cannot read the answer of etcd-wrapper on port %d: %w", c.port, err)
		case line.Error != "":
			return Backup{}, errors.New(printable.Line(line.Error))
		case line.Made != nil:
			line.Made.Name = printable.Line(line.Made.Name)
			return *line.Made, nil
		default:
			uploaded(line.Uploaded, line.Of)
		}
	}
	return Backup{}, fmt.Errorf("etcd-wrapper on port %d stopped, or closed the connection, before the backup was made; its log has the reason", c.port)
}

// send uses plain HTTP, which every wrapper accepts on loopback.
func (c *Client) send(ctx context.Context, method string) (*http.Response, error) {
	address := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(c.port))) + "/backup"
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	reply, err := c.http.Do(request)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the caller's message has the address
	}
	if err != nil {
		return nil, fmt.Errorf("%w from etcd-wrapper on port %d: %w", ErrNoAnswer, c.port, err)
	}
	if reply.StatusCode == http.StatusOK {
		return reply, nil
	}
	defer reply.Body.Close()
	return nil, c.statusError(reply)
}

func (c *Client) statusError(reply *http.Response) error {
	var line event
	err := json.NewDecoder(http.MaxBytesReader(nil, reply.Body, maxLine)).Decode(&line)
	if err == nil && reply.StatusCode == http.StatusNotFound && line.Error == ErrNoBackups.Error() {
		return fmt.Errorf("etcd-wrapper on port %d: %w", c.port, ErrNoBackups)
	}
	return fmt.Errorf("%w from etcd-wrapper on port %d: another program answers there, with HTTP status %d; --etcd-wrapper-port sets the port", ErrNoAnswer, c.port, reply.StatusCode)
}

const (
	heartbeat = time.Second      // between two lines of a response
	patience  = 10 * time.Second // for a client to read one
)

// Backend makes full snapshots. Its methods may be called from any goroutine.
type Backend interface {
	// Make takes a full snapshot now, or waits for the one in progress. Its error is a sentence for users. It must
	// return soon after the context ends, which happens when the client disconnects or the server stops; the snapshot
	// itself may continue.
	Make(ctx context.Context) (Backup, error)
	// Uploaded returns the progress of the snapshot in progress, in bytes of the database; 0 of 0 if none is in
	// progress.
	Uploaded() (done, total int64)
}

// Routes returns the endpoints by net/http's patterns, for clients on loopback. maker is nil if no backups are made;
// flags is unused then.
func Routes(flags Flags, maker Backend) map[string]http.Handler {
	tell, now := http.HandlerFunc(serveNone), http.HandlerFunc(serveNone)
	if maker != nil {
		tell = func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, flags) }
		now = func(w http.ResponseWriter, r *http.Request) { serve(w, r, maker) }
	}
	return map[string]http.Handler{
		"GET /backup":  readiness.ForThisHost("ask for the flags about backups", tell),
		"POST /backup": readiness.ForThisHost("ask for a backup", now),
	}
}

func serveNone(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, event{Error: ErrNoBackups.Error()})
}

func answer(w http.ResponseWriter, status int, content any) {
	sendHeaders(w)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // an error means that the client is gone
}

func sendHeaders(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// serve sends a line of JSON each second, and a last one when the snapshot was made or has failed.
func serve(w http.ResponseWriter, r *http.Request, maker Backend) {
	sendHeaders(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ended := startBackup(ctx, maker)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	lines := &eventWriter{to: w, control: http.NewResponseController(w)}
	for lines.send(progress(maker)) == nil {
		select {
		case <-beat.C:
		case last := <-ended:
			_ = lines.send(last) // an error means that the client is gone
			return
		}
	}
	cancel()
	<-ended
}

func progress(maker Backend) event {
	done, total := maker.Uploaded()
	return event{Uploaded: done, Of: total}
}

func startBackup(ctx context.Context, maker Backend) <-chan event {
	ended := make(chan event, 1)
	go func() {
		made, err := maker.Make(ctx)
		if err != nil {
			ended <- event{Error: printable.Line(err.Error())}
			return
		}
		ended <- event{Made: &made}
	}()
	return ended
}

// eventWriter sets a deadline for each line. It replaces the server's deadline, which is for a whole response.
type eventWriter struct {
	to      http.ResponseWriter
	control *http.ResponseController
}

func (l *eventWriter) send(line event) error {
	if err := l.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := json.NewEncoder(l.to).Encode(line); err != nil {
		return err
	}
	return l.control.Flush()
}
