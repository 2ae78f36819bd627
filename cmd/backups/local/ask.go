package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"etcd-wrapper/internal/printable"
)

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
	dialer := &net.Dialer{Timeout: askTimeout}
	return &Client{port: port, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &impatient{conn}, nil
		},
		ResponseHeaderTimeout: askTimeout,
		DisableKeepAlives:     true,
	}}}
}

// impatient is a connection that ends when nothing comes for too long.
type impatient struct{ net.Conn }

func (c *impatient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Flags asks how backups are made. The error is ErrNoAnswer or ErrNoBackups, wrapped, or says what cannot be read.
func (c *Client) Flags(ctx context.Context) (flags Flags, err error) {
	reply, err := c.ask(ctx, http.MethodGet)
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
func (c *Client) Now(ctx context.Context, uploaded func(done, total int64)) (Made, error) {
	reply, err := c.ask(ctx, http.MethodPost)
	if err != nil {
		return Made{}, err
	}
	defer reply.Body.Close()
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var line event
		err := json.Unmarshal(lines.Bytes(), &line)
		switch {
		case err != nil:
			return Made{}, fmt.Errorf("cannot read the answer of etcd-wrapper on port %d: %w", c.port, err)
		case line.Error != "":
			return Made{}, errors.New(printable.Line(line.Error))
		case line.Made != nil:
			line.Made.Name = printable.Line(line.Made.Name)
			return *line.Made, nil
		default:
			uploaded(line.Uploaded, line.Of)
		}
	}
	return Made{}, fmt.Errorf("etcd-wrapper on port %d has ended, or broken off, before the backup was made; its log says why", c.port)
}

// ask asks in plain HTTP, which a wrapper understands on loopback whatever else it speaks.
func (c *Client) ask(ctx context.Context, method string) (*http.Response, error) {
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
	return nil, c.refused(reply)
}

func (c *Client) refused(reply *http.Response) error {
	var line event
	err := json.NewDecoder(http.MaxBytesReader(nil, reply.Body, maxLine)).Decode(&line)
	if err == nil && reply.StatusCode == http.StatusNotFound && line.Error == ErrNoBackups.Error() {
		return fmt.Errorf("etcd-wrapper on port %d: %w", c.port, ErrNoBackups)
	}
	return fmt.Errorf("cannot ask etcd-wrapper on port %d: HTTP status %d", c.port, reply.StatusCode)
}
