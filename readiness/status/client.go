package status

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"etcd-wrapper/internal/printable"
	"etcd-wrapper/member/state"
)

const (
	requestTimeout = 5 * time.Second // time until a reply starts; long, because the machine may be busy
	maxDocument    = 4 << 20         // bytes
)

// ErrNoAnswer is returned if no wrapper answers.
var ErrNoAnswer = errors.New("no answer")

// Client reads the status of one wrapper.
type Client struct {
	address string // scheme, host and port
	name    string // describes the wrapper in errors
	timeout time.Duration
	http    *http.Client
}

// NewClient returns a client for the wrapper on a loopback port. It does not connect yet. It uses plain HTTP, which a
// wrapper always accepts on loopback.
func NewClient(port uint16) *Client {
	return newClient(loopback, port, fmt.Sprintf("etcd-wrapper on port %d", port), requestTimeout, nil)
}

// newClient returns a client for a host. secured is the TLS configuration; nil means plain HTTP.
func newClient(host string, port uint16, name string, timeout time.Duration, secured *tls.Config) *Client {
	scheme := "http"
	if secured != nil {
		scheme = "https"
	}
	address := scheme + "://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
	return &Client{address: address, name: cmp.Or(name, "etcd-wrapper at "+address), timeout: timeout, http: &http.Client{Transport: &http.Transport{
		DialContext:           dialer{net.Dialer{Timeout: timeout}}.dial,
		TLSClientConfig:       secured,
		ResponseHeaderTimeout: timeout,
		DisableKeepAlives:     true,
	}}}
}

const loopback = "127.0.0.1"

type dialer struct{ net.Dialer }

// dial connects to an address. On a host without IPv4, ::1 replaces 127.0.0.1.
func (d dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.DialContext(ctx, network, address)
	if host, port, _ := net.SplitHostPort(address); err != nil && host == loopback {
		if conn, failed := d.DialContext(ctx, network, net.JoinHostPort("::1", port)); failed == nil {
			return conn, nil
		}
	}
	return conn, err
}

// Fetch returns the current document. Its texts are printable even if another program answers. The error wraps
// ErrNoAnswer if there is no answer within 5 s.
func (c *Client) Fetch(ctx context.Context) (Document, error) {
	reply, err := c.open(ctx, "")
	if err != nil {
		return Document{}, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxDocument))
	if err != nil {
		return Document{}, fmt.Errorf("cannot read the status: %w", err)
	}
	return decode(text)
}

func decode(text []byte) (document Document, err error) {
	if err := json.Unmarshal(printable.JSON(text), &document); err != nil {
		return Document{}, fmt.Errorf("cannot read the status: %w", err)
	}
	return document, nil
}

// Watch calls receive with the current document and again after each change, until the wrapper ends, ctx is done or
// receive returns an error. Watch returns the errors of receive and those that Fetch returns.
func (c *Client) Watch(ctx context.Context, receive func(Document) error) error {
	reply, err := c.open(ctx, "?watch")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, maxDocument)
	for lines.Scan() {
		event, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		document, err := decode(event)
		if err != nil {
			return err
		}
		if err := receive(document); err != nil {
			return err
		}
	}
	return nil
}

// RejectedError is the wrapper's reason for rejecting a request, as a sentence.
type RejectedError string

// Error implements error.
func (r RejectedError) Error() string { return string(r) }

// maxReason is the maximum size of a reason in bytes.
const maxReason = 4 << 10

// Defragment requests a defragmentation and returns once the wrapper has accepted the request; the document shows the
// progress. The error is a RejectedError if no defragmentation can start now, and wraps ErrNoAnswer if no wrapper
// answers within 5 s.
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
		reason, err := io.ReadAll(io.LimitReader(reply.Body, maxReason))
		if err != nil {
			return fmt.Errorf("cannot read why the wrapper refuses: %w", err)
		}
		return RejectedError(printable.Line(string(reason)))
	default:
		return fmt.Errorf("cannot ask %s for a defragmentation: HTTP status %d", c.name, reply.StatusCode)
	}
}

// open requests the document.
func (c *Client) open(ctx context.Context, query string) (*http.Response, error) {
	reply, err := c.Send(ctx, http.MethodGet, "/lifecycle"+query)
	if err != nil || reply.StatusCode == http.StatusOK {
		return reply, err
	}
	reply.Body.Close() //nolint:errcheck // nothing was read
	advice := ""
	if reply.StatusCode == http.StatusNotFound {
		advice = ": another program listens there, such as etcd or the sidecar, or a wrapper that has no /lifecycle; --etcd-wrapper-port names the wrapper's own port"
	}
	return nil, fmt.Errorf("cannot ask %s: HTTP status %d%s", c.name, reply.StatusCode, advice)
}

// Send sends a request for a path and returns the reply with any HTTP status.
func (c *Client) Send(ctx context.Context, method, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.address+path, nil)
	if err != nil {
		return nil, err
	}
	reply, err := c.http.Do(request)
	var wrapped *url.Error
	switch {
	case !errors.As(err, &wrapped):
		return reply, err
	case wrapped.Timeout():
		return nil, fmt.Errorf("%w from %s within %v: it hangs, gets almost no CPU time or is another program, or its host cannot be reached; see the container's log",
			ErrNoAnswer, c.name, c.timeout)
	default:
		return nil, fmt.Errorf("%w from %s: %w; if it is not running or uses another port, its log and its termination message say so",
			ErrNoAnswer, c.name, wrapped.Err) // the name already contains the address
	}
}

// MemberStatus is the status of one member of a cluster.
type MemberStatus struct {
	Member   string    `json:"member"`
	Document *Document `json:"status,omitempty"` // nil if the member did not respond
	Error    string    `json:"error,omitempty"`  // why there is no document
}

// memberTimeout bounds the time for all members to answer, in parallel.
const memberTimeout = 3 * time.Second

// FetchAll fetches the status of all members that known lists, in the same order. It uses the hosts of their peer
// URLs and the same port for all. secured is the TLS configuration; nil means plain HTTP.
func FetchAll(ctx context.Context, known Document, port uint16, secured *tls.Config) []MemberStatus {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	answers := make([]MemberStatus, len(known.Peers))
	var pending sync.WaitGroup
	for i, peer := range known.Peers {
		answers[i].Member = cmp.Or(peer.Name, peer.ID)
		if peer.ID == known.MemberID {
			answers[i].Document = &known
			continue
		}
		pending.Go(func() {
			document, err := fetchFrom(ctx, known, peer, port, secured)
			if err != nil {
				answers[i].Error = err.Error()
				return
			}
			answers[i].Document = &document
		})
	}
	pending.Wait()
	return answers
}

func fetchFrom(ctx context.Context, known Document, peer state.Peer, port uint16, secured *tls.Config) (Document, error) {
	if len(peer.URLs) == 0 {
		return Document{}, errors.New("it has no peer URL")
	}
	at, err := url.Parse(peer.URLs[0])
	if err != nil {
		return Document{}, fmt.Errorf("its peer URL is invalid: %w", err)
	}
	client := newClient(at.Hostname(), port, "", memberTimeout, secured)
	document, err := client.Fetch(ctx)
	if err != nil {
		return Document{}, err
	}
	return document, checkMember(document, known, peer, client.address)
}

// checkMember rejects the status of any process but the member's own: an address may lead to another member, to
// another cluster or to a program that is not a wrapper. A member that is still starting does not know its ID and is
// not ready.
func checkMember(answer, known Document, peer state.Peer, address string) error {
	switch {
	case answer.MemberID == "" && (answer.Ready || answer.State == ""):
		return fmt.Errorf("%s answers without a member ID: another program listens there; check that the member's wrapper runs on that port", address)
	case answer.MemberID != "" && answer.MemberID != peer.ID, answer.ClusterID != "" && known.ClusterID != "" && answer.ClusterID != known.ClusterID:
		return fmt.Errorf("%s answers for member %s of cluster %s (%s), not for this member: it does not run there, or its wrapper has another port",
			address, cmp.Or(answer.MemberID, "?"), cmp.Or(answer.ClusterID, "?"), answer.Pod)
	default:
		return nil
	}
}
