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
	requestTimeout = 5 * time.Second // time until the reply starts; generous, because the machine may be busy
	maxDocument    = 4 << 20         // bytes
)

// ErrNoAnswer means that the wrapper has not responded.
var ErrNoAnswer = errors.New("no answer")

// A Client sends requests to one wrapper.
type Client struct {
	address string // scheme, host and port
	name    string // name of the wrapper in error messages
	timeout time.Duration
	http    *http.Client
}

// NewClient returns a client for the wrapper on a loopback port, without connecting to it. It uses plain HTTP, which
// wrappers always accept on loopback.
func NewClient(port uint16) *Client {
	return newClient(loopback, port, fmt.Sprintf("etcd-wrapper on port %d", port), requestTimeout, nil)
}

// newClient returns a client for the wrapper on the given host. It uses plain HTTP if secured is nil.
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

// dial connects to an address. If 127.0.0.1 is not available, dial tries ::1.
func (d dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.DialContext(ctx, network, address)
	if host, port, _ := net.SplitHostPort(address); err != nil && host == loopback {
		if conn, failed := d.DialContext(ctx, network, net.JoinHostPort("::1", port)); failed == nil {
			return conn, nil
		}
	}
	return conn, err
}

// Fetch returns the current document. Control characters in the document are escaped. The error wraps ErrNoAnswer if
// the wrapper is unreachable or does not respond within 5 s.
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

// Watch calls receive with the current document and again after each change, until the wrapper stops, ctx is done or
// receive returns an error. Watch returns the error from receive, or the same errors as Fetch.
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

// A RejectedError contains the wrapper's reason for rejecting a request.
type RejectedError string

// Error implements error.
func (r RejectedError) Error() string { return string(r) }

// maxReason is the maximum size of a RejectedError in bytes.
const maxReason = 4 << 10

// Defragment requests a defragmentation and returns once the wrapper has accepted the request. Documents show the
// progress. The error is a RejectedError if a defragmentation cannot start now, and wraps ErrNoAnswer if the wrapper
// is unreachable or does not respond within 5 s.
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
			return fmt.Errorf("cannot read the wrapper's error message: %w", err)
		}
		return RejectedError(printable.Line(string(reason)))
	default:
		return fmt.Errorf("cannot request a defragmentation from %s: HTTP status %d", c.name, reply.StatusCode)
	}
}

// open requests the document, or with the query "?watch" a stream of documents. The caller must close the body.
func (c *Client) open(ctx context.Context, query string) (*http.Response, error) {
	reply, err := c.Send(ctx, http.MethodGet, "/lifecycle"+query)
	if err != nil || reply.StatusCode == http.StatusOK {
		return reply, err
	}
	reply.Body.Close() //nolint:errcheck // the body is not needed
	advice := ""
	if reply.StatusCode == http.StatusNotFound {
		advice = ": another program (such as etcd or the sidecar) or an older version of the wrapper is listening there; set --etcd-wrapper-port to the wrapper's port"
	}
	return nil, fmt.Errorf("cannot read the status of %s: HTTP status %d%s", c.name, reply.StatusCode, advice)
}

// Send sends a request and returns the reply, regardless of its HTTP status.
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
		return nil, fmt.Errorf("%w from %s within %v: the process may be hung or starved of CPU, its host may be unreachable, or another program may be using the port; check the container's log",
			ErrNoAnswer, c.name, c.timeout)
	default:
		return nil, fmt.Errorf("%w from %s: %w; check its log and termination message to see if it has stopped or uses another port",
			ErrNoAnswer, c.name, wrapped.Err) // not wrapped itself, which would repeat the address in the name
	}
}

// A MemberStatus is the status of one member of a cluster.
type MemberStatus struct {
	Member   string    `json:"member"`
	Document *Document `json:"status,omitempty"` // nil if the member did not respond
	Error    string    `json:"error,omitempty"`  // why there is no document
}

// memberTimeout limits how long FetchAll takes. It applies to all members, because they are queried in parallel.
const memberTimeout = 3 * time.Second

// FetchAll returns the status of all members in known.Peers, in the same order. FetchAll connects to the hosts in
// their peer URLs, at the given port. If secured is nil, FetchAll uses plain HTTP.
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
		return Document{}, errors.New("the member has no peer URL")
	}
	at, err := url.Parse(peer.URLs[0])
	if err != nil {
		return Document{}, fmt.Errorf("the member's peer URL is invalid: %w", err)
	}
	client := newClient(at.Hostname(), port, "", memberTimeout, secured)
	document, err := client.Fetch(ctx)
	if err != nil {
		return Document{}, err
	}
	return document, checkMember(document, known, peer, client.address)
}

// checkMember returns an error if a document is not from the expected member: the address may belong to another
// member, another cluster or another program. While a member is starting, its ID is unknown and it is not ready.
func checkMember(answer, known Document, peer state.Peer, address string) error {
	switch {
	case answer.MemberID == "" && (answer.Ready || answer.State == ""):
		return fmt.Errorf("the response from %s has no member ID: another program is listening there; check the port of the member's wrapper", address)
	case answer.MemberID != "" && answer.MemberID != peer.ID, answer.ClusterID != "" && known.ClusterID != "" && answer.ClusterID != known.ClusterID:
		return fmt.Errorf("the response from %s is from member %s of cluster %s (%s): this member's wrapper runs on another host or port",
			address, cmp.Or(answer.MemberID, "?"), cmp.Or(answer.ClusterID, "?"), answer.Pod)
	default:
		return nil
	}
}
