package backups

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrNoBackups reports that backups are disabled in the wrapper that responded.
var ErrNoBackups = errors.New("backups are disabled because --backup-store is not set")

// Flags is the body of the response to GET /backup: the wrapper's flags by name, without dashes. Flags contains no
// secrets, because key files are passed by path.
type Flags struct {
	Store       string `json:"backup-store"`
	Keep        string `json:"backup-keep"`
	Identities  string `json:"backup-identities,omitempty"`
	SigningKey  string `json:"backup-signing-key,omitempty"`
	TrustedKeys string `json:"backup-trusted-keys,omitempty"`
	VolumeDir   string `json:"volume-dir"`
}

// A Backup is a full snapshot in the store.
type Backup struct {
	Name     string    `json:"name"`     // name of the full snapshot as shown by backup list
	Revision int64     `json:"revision"` // revision of the snapshot
	Time     time.Time `json:"time"`     // time at which the database was read
	Bytes    int64     `json:"bytes"`    // size in the store
}

// Print prints the backup as text, with times in the user's time zone.
func (m Backup) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "uploaded full snapshot %s (revision %d, taken at %s, %s)\n", m.Name, m.Revision, terminal.FormatTime(m.Time), terminal.Size(m.Bytes))
	return err
}

// An event is a line of the response to POST /backup. The last line sets Made or Error; the lines before it report
// progress.
type event struct {
	Uploaded int64   `json:"uploaded,omitempty"` // bytes of the database uploaded so far
	Of       int64   `json:"of,omitempty"`       // size of the database
	Made     *Backup `json:"made,omitempty"`
	Error    string  `json:"error,omitempty"`
}

// maxLine is the maximum size in bytes of a response, or of one line of a streamed response.
const maxLine = 64 << 10

// lineTimeout limits how long the client waits for the next line. It is a variable so that tests can shorten it.
var lineTimeout = 30 * time.Second

// A Client sends requests to the wrapper on this host.
type Client struct {
	*status.Client

	port uint16
}

// NewClient returns a client for the wrapper on a loopback port. NewClient does not open a connection.
func NewClient(port uint16) Client { return Client{status.NewClient(port), port} }

// Flags returns the wrapper's backup flags. The error wraps status.ErrNoAnswer or ErrNoBackups, or reports an
// unreadable response.
func (c Client) Flags(ctx context.Context) (flags Flags, err error) {
	ctx, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	reply, err := c.ask(ctx, http.MethodGet)
	if err != nil {
		return Flags{}, err
	}
	defer reply.Body.Close()
	if err := json.NewDecoder(io.LimitReader(reply.Body, maxLine)).Decode(&flags); err != nil {
		return Flags{}, fmt.Errorf("cannot read the response from etcd-wrapper on port %d: %w", c.port, err)
	}
	return flags, nil
}

// Now requests a full snapshot and waits until it is uploaded. Now calls uploaded about once a second with the number
// of uploaded bytes and the size of the database. The error wraps status.ErrNoAnswer or ErrNoBackups, or contains the
// error that the wrapper reported.
func (c Client) Now(ctx context.Context, uploaded func(done, total int64)) (Backup, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(lineTimeout, cancel)
	defer watchdog.Stop()
	reply, err := c.ask(ctx, http.MethodPost)
	if err != nil {
		return Backup{}, err
	}
	defer reply.Body.Close()
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		watchdog.Reset(lineTimeout)
		var line event
		err := json.Unmarshal(lines.Bytes(), &line)
		switch {
		case err != nil:
			return Backup{}, fmt.Errorf("cannot read the response from etcd-wrapper on port %d: %w", c.port, err)
		case line.Error != "":
			return Backup{}, errors.New(printable.Line(line.Error))
		case line.Made != nil:
			line.Made.Name = printable.Line(line.Made.Name)
			return *line.Made, nil
		default:
			uploaded(line.Uploaded, line.Of)
		}
	}
	return Backup{}, fmt.Errorf("etcd-wrapper on port %d closed the connection before the backup was complete; its log contains the reason", c.port)
}

// ask sends a request and returns the response. If the wrapper has backups disabled, ask returns an error.
func (c Client) ask(ctx context.Context, method string) (*http.Response, error) {
	reply, err := c.Send(ctx, method, "/backup")
	if err != nil || reply.StatusCode == http.StatusOK {
		return reply, err
	}
	defer reply.Body.Close()
	var line event
	err = json.NewDecoder(io.LimitReader(reply.Body, maxLine)).Decode(&line)
	if err == nil && reply.StatusCode == http.StatusNotFound && line.Error == ErrNoBackups.Error() {
		return nil, fmt.Errorf("etcd-wrapper on port %d: %w", c.port, ErrNoBackups)
	}
	return nil, fmt.Errorf("%w from etcd-wrapper on port %d: another program is using that port (HTTP status %d); set --etcd-wrapper-port",
		status.ErrNoAnswer, c.port, reply.StatusCode)
}

const (
	heartbeat   = time.Second      // interval between progress lines
	sendTimeout = 10 * time.Second // time limit for sending a line; a client that does not read it in time is disconnected
)

// Backend takes full snapshots. *backup.Backups implements it. Its methods may be called from any goroutine.
type Backend interface {
	// Now takes a full snapshot, or waits for the snapshot that is already in progress. The error message must be a
	// sentence that users can understand. Now must return soon after ctx is done, which means that the client has
	// disconnected or the server is stopping. The snapshot itself may continue in the background.
	Now(ctx context.Context) (archive.Full, error)
	Published() *facts.Backups
}

// Routes returns the handlers for loopback clients, keyed by net/http pattern. If backend is nil, backups are disabled,
// and the handlers respond with ErrNoBackups.
func Routes(flags Flags, backend Backend, log zerolog.Logger) map[string]http.Handler {
	get, post := http.HandlerFunc(serveNone), http.HandlerFunc(serveNone)
	if backend != nil {
		get = func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, flags) }
		post = func(w http.ResponseWriter, r *http.Request) { serve(w, r, backend) }
	}
	return map[string]http.Handler{
		"GET /backup":  readiness.LocalOnly("read the backup flags", log, get),
		"POST /backup": readiness.LocalOnly("request a backup", log, post),
	}
}

func serveNone(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, event{Error: ErrNoBackups.Error()})
}

func answer(w http.ResponseWriter, status int, content any) {
	sendHeaders(w)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // fails if the client has disconnected
}

func sendHeaders(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// serve sends a line of JSON every second and a final line when the snapshot is complete or has failed.
func serve(w http.ResponseWriter, r *http.Request, backend Backend) {
	sendHeaders(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ended := make(chan event, 1)
	go func() {
		full, err := backend.Now(ctx)
		if err != nil {
			ended <- event{Error: printable.Line(err.Error())}
			return
		}
		ended <- event{Made: &Backup{Name: full.Name(), Revision: full.Revision, Time: full.Time, Bytes: full.Data.Bytes}}
	}()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for sendLine(w, uploadEvent(backend)) == nil {
		select {
		case <-beat.C:
		case last := <-ended:
			_ = sendLine(w, last) // fails if the client has disconnected
			return
		}
	}
	cancel()
	<-ended
}

func uploadEvent(backend Backend) event {
	if full := backend.Published().RunningFullSnapshot; full != nil {
		return event{Uploaded: full.SentBytes, Of: full.TotalBytes}
	}
	return event{}
}

// sendLine sends a line with its own write deadline, because the server's deadline applies to the entire response,
// which may take much longer.
func sendLine(w http.ResponseWriter, line event) error {
	control := http.NewResponseController(w)
	if err := control.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(line); err != nil {
		return err
	}
	return control.Flush()
}
