package status

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/internal/printable"
)

const (
	askTimeout = 5 * time.Second // until a reply starts: the machine may be busy
	maxEvent   = 4 << 20         // bytes of an event, max
)

// ErrNoAnswer is returned if no wrapper answers on the port.
var ErrNoAnswer = errors.New("no answer")

// Client reads the status of the wrapper on this host.
type Client struct {
	port uint16
	http *http.Client
}

// dialLoopback returns a function for http.Transport that connects to a port of 127.0.0.1 or, on a host without IPv4, of ::1.
func dialLoopback(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		if _, port, split := net.SplitHostPort(address); split == nil {
			if conn, failed := dialer.DialContext(ctx, network, net.JoinHostPort("::1", port)); failed == nil {
				return conn, nil
			}
		}
		return nil, err
	}
}

// NewClient returns a client for the wrapper on a port of loopback. It connects to nothing yet.
func NewClient(port uint16) *Client {
	return &Client{port: port, http: &http.Client{Transport: &http.Transport{
		DialContext:           dialLoopback(askTimeout),
		ResponseHeaderTimeout: askTimeout,
		DisableKeepAlives:     true,
	}}}
}

// Fetch returns the document as it is now, fit for a terminal, even if another program answers on the port. The error is ErrNoAnswer,
// wrapped, if nobody answers within 5 s.
func (c *Client) Fetch(ctx context.Context) (Document, error) {
	reply, err := c.open(ctx, "")
	if err != nil {
		return Document{}, err
	}
	defer reply.Body.Close()
	document, err := decode(reply.Body)
	if err != nil {
		return Document{}, fmt.Errorf("cannot read the status: %w", err)
	}
	return document, nil
}

// decode reads a document and makes its texts printable.
func decode(body io.Reader) (document Document, err error) {
	err = json.NewDecoder(body).Decode(&document)
	return document.printable(), err
}

// Watch calls receive with the current document and again after each change, until the wrapper ends, ctx ends or receive returns an error.
// Watch returns the errors of receive and those that Fetch returns.
func (c *Client) Watch(ctx context.Context, receive func(Document) error) error {
	reply, err := c.open(ctx, "?watch")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, maxEvent)
	object := map[string]any{}
	for lines.Scan() {
		event, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		document, err := patched(object, event)
		if err != nil {
			return fmt.Errorf("cannot read the status: %w", err)
		}
		if err := receive(document.printable()); err != nil {
			return err
		}
	}
	return nil
}

// patched applies an event to the object and returns the document that results. The first event, a whole document, patches an empty object.
func patched(object map[string]any, event []byte) (document Document, err error) {
	decoder := json.NewDecoder(bytes.NewReader(event))
	decoder.UseNumber()
	var patch map[string]any
	if err := decoder.Decode(&patch); err != nil {
		return Document{}, err
	}
	applyPatch(object, patch)
	encoded, err := json.Marshal(object)
	if err != nil {
		return Document{}, err
	}
	err = json.Unmarshal(encoded, &document)
	return document, err
}

// RefusalError is the reason for which the wrapper refuses a request, a sentence.
type RefusalError string

// Error implements error.
func (r RefusalError) Error() string { return string(r) }

// maxRefusal is the size of a refusal in bytes, max.
const maxRefusal = 4 << 10

// Defragment asks for a defragmentation and returns once that is promised; the document shows its progress. The error is a
// RefusalError if it cannot be now, or ErrNoAnswer, wrapped, if nobody answers within 5 s.
func (c *Client) Defragment(ctx context.Context) error {
	reply, err := c.Send(ctx, http.MethodPost, "/defrag")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	switch reply.StatusCode {
	case http.StatusAccepted:
		return nil
	case http.StatusConflict, http.StatusForbidden:
		why, err := io.ReadAll(io.LimitReader(reply.Body, maxRefusal))
		if err != nil {
			return fmt.Errorf("cannot read why the wrapper refuses: %w", err)
		}
		return RefusalError(printable.Line(strings.TrimSpace(string(why))))
	default:
		return fmt.Errorf("cannot ask etcd-wrapper on port %d for a defragmentation: HTTP status %d", c.port, reply.StatusCode)
	}
}

// open requests the document.
func (c *Client) open(ctx context.Context, query string) (*http.Response, error) {
	reply, err := c.Send(ctx, http.MethodGet, "/lifecycle"+query)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		reply.Body.Close() //nolint:errcheck // nothing was read
		who := ""
		if reply.StatusCode == http.StatusNotFound {
			who = ": another program listens there, such as etcd or the sidecar, or a wrapper that has no /lifecycle; --etcd-wrapper-port names the wrapper's own port"
		}
		return nil, fmt.Errorf("cannot ask etcd-wrapper on port %d: HTTP status %d%s", c.port, reply.StatusCode, who)
	}
	return reply, nil
}

// Send sends a request for a path, and returns the reply whatever its status. It uses plain HTTP, which a wrapper always
// accepts on loopback.
func (c *Client) Send(ctx context.Context, method, path string) (*http.Response, error) {
	reply, err := c.do(ctx, method, path)
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return nil, fmt.Errorf("%w from etcd-wrapper on port %d within %v, though somebody listens: it hangs or gets next to "+
			"no CPU time, or the port is another program's; the container's log says which", ErrNoAnswer, c.port, askTimeout)
	}
	if err != nil {
		return nil, fmt.Errorf("%w from etcd-wrapper on port %d: %w; it does not run, or on another port: its log and its "+
			"termination message say why", ErrNoAnswer, c.port, err)
	}
	return reply, nil
}

func (c *Client) do(ctx context.Context, method, path string) (*http.Response, error) {
	address := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(c.port))) + path
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	reply, err := c.http.Do(request)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the message has the address already
	}
	return reply, err
}
