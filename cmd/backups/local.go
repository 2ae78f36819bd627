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

// Flags is the answer of GET /backup: flags of the wrapper by name, without the dashes. None of them is secret; of keys it has the
// paths only.
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
	Name     string    `json:"name"`     // of the full, as backup list shows it
	Revision int64     `json:"revision"` // that it holds
	Time     time.Time `json:"time"`     // at which the database was read
	Bytes    int64     `json:"bytes"`    // in the store
}

// Print prints the document for people, with times in their zone.
func (m Backup) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "full %s of revision %d, from %s, is in the store: %s\n", m.Name, m.Revision, terminal.Moment(m.Time), terminal.Size(m.Bytes))
	return err
}

// event is a line of the reply to POST /backup. The last one has Made or Error; those before it show that it goes on.
type event struct {
	Uploaded int64   `json:"uploaded,omitempty"` // bytes of the database so far
	Of       int64   `json:"of,omitempty"`       // and of how many
	Made     *Backup `json:"made,omitempty"`
	Error    string  `json:"error,omitempty"`
}

const (
	askTimeout = 2 * time.Second  // for a reply to begin
	silence    = 30 * time.Second // in a reply, after which nobody is there any longer
	maxLine    = 64 << 10         // bytes of a line of a reply
)

// Client asks the wrapper on this host.
type Client struct {
	port uint16
	http *http.Client
}

// NewClient returns a client for the wrapper on a port of loopback. It connects to nothing yet.
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

// idleTimeoutConn is a connection that ends when it receives nothing for too long.
type idleTimeoutConn struct{ net.Conn }

func (c *idleTimeoutConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Flags asks how backups are made. The error is ErrNoAnswer or ErrNoBackups, wrapped, or says what cannot be read.
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

// Now has a full backup made, tells about every second how many bytes of the database are uploaded, and of how many, and waits
// until it is in the store. The error is ErrNoAnswer or ErrNoBackups, wrapped, or the wrapper's own.
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
	return Backup{}, fmt.Errorf("etcd-wrapper on port %d has ended, or broken off, before the backup was made; its log says why", c.port)
}

// send uses plain HTTP, which every wrapper understands on loopback.
func (c *Client) send(ctx context.Context, method string) (*http.Response, error) {
	address := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(c.port))) + "/backup"
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	reply, err := c.http.Do(request)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the address is told already
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
	heartbeat = time.Second      // between two lines of a reply
	patience  = 10 * time.Second // for a client to take one
)

// Backend makes full backups. Its methods may be called from any goroutine.
type Backend interface {
	// Make makes one now, or waits for the one that is being made. Its error is a sentence for people. It must return soon after
	// the context ends, which is when the client leaves or the server ends; the backup itself may go on.
	Make(ctx context.Context) (Backup, error)
	// Uploaded is how much of the one that is being made is in the store, and of how much, both in bytes of the database; 0 of 0
	// while there is nothing to tell.
	Uploaded() (done, total int64)
}

// Routes are the endpoints by net/http's patterns, for clients on loopback. maker is nil if no backups are made; then flags are
// not looked at.
func Routes(flags Flags, maker Backend) map[string]http.Handler {
	tell, now := http.HandlerFunc(serveNone), http.HandlerFunc(serveNone)
	if maker != nil {
		tell = func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, flags) }
		now = func(w http.ResponseWriter, r *http.Request) { serve(w, r, maker) }
	}
	return map[string]http.Handler{
		"GET /backup":  readiness.ForThisHost("ask how backups are made", tell),
		"POST /backup": readiness.ForThisHost("ask for a backup", now),
	}
}

func serveNone(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, event{Error: ErrNoBackups.Error()})
}

func answer(w http.ResponseWriter, status int, content any) {
	sendHeaders(w)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // a client that is gone misses nothing
}

func sendHeaders(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// serve sends a line of JSON each second and a last one when the backup was made.
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
			_ = lines.send(last) // a client that is gone misses nothing
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

// eventWriter gives each line a deadline of its own, in the place of the server's, which is for a whole reply.
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
