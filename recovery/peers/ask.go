package peers

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// Ask asks every other member, and answers their calls from the first time on until Close. It returns within some
// seconds, or when ctx ends.
func (p *Peers) Ask(ctx context.Context, self Self) Survey {
	p.renew()
	deaf := p.open()
	if deaf == nil { // otherwise the others do not learn that this member waits
		p.desk.call.Store(p.call(self))
	}
	answers, calls, silent := p.askAll(ctx, p.others)
	further, _, _ := p.askAll(ctx, p.notAsked(answers)) // a quorum of the configured ones may suffice
	answers = append(answers, further...)
	c, by := p.judge(answers)
	if c.Listing == Unknown {
		c.Listing = p.roll(self, answers, calls)
	}
	how := p.positions(ctx, self, &c, answers)
	c.Silent = both(both(p.lacking(self, &c, answers, calls), how), both(deaf, silent))
	p.count(&c, self, answers, calls)
	c.Brought = !slices.ContainsFunc(calls, func(call Call) bool { return !call.Brought })
	if c.Outdated = former(self, &c); c.Outdated == nil && self.MemberID != 0 {
		c.Outdated = p.forgot(ctx, self, &c)
	}
	if c.Listing == Started || c.Listing == Unlisted {
		c.InTheWay = p.inTheWay(ctx, &c, by, calls)
	}
	c.InTheWay = cmp.Or(p.identify(ctx, &c), c.InTheWay)
	return c
}

// count adds the numbers of members to a survey.
func (p *Peers) count(c *Survey, self Self, answers []*answer, calls []Call) {
	for _, a := range answers {
		if a.cluster == strconv.FormatUint(self.ClusterID, 16) {
			c.Run, c.Voters = c.Run+1, max(c.Voters, len(voters(a.members)))
		}
	}
	without, with := 0, 0 // members with and without data that could form a quorum of this cluster
	for _, call := range calls {
		if call.Holds == Older {
			c.Older++
		}
		if usable := call.Holds != Nothing && call.Holds != Ruins; usable && (call.Cluster == "" || call.Cluster == formatID(self.ClusterID)) {
			with++
		} else {
			without++
		}
	}
	quorum := (1+len(p.others))/2 + 1
	c.NoQuorumElsewhere = without > 0 && with == 0 && len(p.others)-without < quorum
}

// formatID formats an ID as etcd does; 0 is empty.
func formatID(id uint64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(id, 16)
}

// notAsked returns the members that an answer names and the configuration does not.
func (p *Peers) notAsked(answers []*answer) map[string][]string {
	more, asked := map[string][]string{}, slices.Concat(slices.Collect(maps.Values(p.others))...)
	for _, a := range answers {
		for _, m := range a.members {
			if !slices.ContainsFunc(m.PeerURLs, func(url string) bool { return p.isOwnURL(url) || slices.Contains(asked, url) }) {
				more[m.ID.String()] = m.PeerURLs
			}
		}
	}
	return more
}

// askAll asks members in parallel.
func (p *Peers) askAll(ctx context.Context, whom map[string][]string) (answers []*answer, calls []Call, silent error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	var failed []string
	for name, urls := range whom {
		asking.Go(func() {
			told, err := p.ask(ctx, name, urls)
			var call Call
			waits := err != nil && p.hear(ctx, name, urls, &call)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				answers = append(answers, told)
			case waits:
				calls = append(calls, call)
			default:
				failed = append(failed, fmt.Sprintf("%s does not answer (%v)", name, said{err}))
			}
		})
	}
	asking.Wait()
	slices.SortFunc(answers, func(a, b *answer) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(calls, func(a, b Call) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(failed)
	return answers, calls, sentence(failed)
}

// ask returns the first answer from one of a member's URLs.
func (p *Peers) ask(ctx context.Context, name string, urls []string) (*answer, error) {
	err := errors.New("it has no URL")
	for _, at := range urls {
		told := &answer{name: name, url: at}
		if told.cluster, err = p.fetch(ctx, p.peer, at+"/members", &told.members); err != nil {
			continue
		}
		id, unclear := types.IDFromString(told.cluster)
		told.cluster = id.String()
		if err = odd(told.members); err == nil && unclear == nil {
			return told, nil
		}
		err = fmt.Errorf("what answers at %s tells of %w", at, cmp.Or(err, errors.New("no cluster")))
	}
	return nil, err
}

// hear asks a member that runs no etcd for its state.
func (p *Peers) hear(ctx context.Context, name string, urls []string, call *Call) bool {
	return slices.ContainsFunc(urls, func(at string) bool {
		_, err := p.fetch(ctx, p.peer, at+callPath, call)
		return err == nil && call.Name == name
	})
}

// fetch reads a document, and the ID of the cluster that it came from.
func (p *Peers) fetch(ctx context.Context, from *http.Client, at string, document any) (cluster string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	response, err := from.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: status %d", at, response.StatusCode)
	}
	body := io.LimitReader(response.Body, answerSize)
	if text, plain := document.(*string); plain {
		content, err := io.ReadAll(body)
		*text = string(content)
		return "", err
	}
	if err := json.NewDecoder(body).Decode(document); err != nil {
		return "", fmt.Errorf("%s: no answer that can be read", at)
	}
	return response.Header.Get("X-Etcd-Cluster-ID"), nil
}

// callPath is where a member that runs no etcd yet reports its state, to the others and to itself. etcd does not use
// it.
const callPath = "/etcd-wrapper/call"

// A desk answers at this member's peer address while it asks the others. Every other request is answered as
// unavailable, so that rafthttp tries again.
type desk struct {
	server *http.Server
	ended  sync.WaitGroup
	call   atomic.Pointer[Call]
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != callPath {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(d.call.Load()) // the caller has disconnected
}

// Tell publishes the state of this member to the others, as Ask does.
func (p *Peers) Tell(self Self) {
	if err := p.open(); err == nil { // otherwise the others do not learn it
		p.desk.call.Store(p.call(self))
	}
}

func (p *Peers) call(self Self) *Call {
	return &Call{Name: p.name, Process: p.process, Cluster: formatID(self.ClusterID), Holds: self.Holds, Restore: self.Restore, Brought: self.Brought}
}

// open starts to answer if that is possible by now; the error says why it is not.
func (p *Peers) open() error {
	if p.desk != nil {
		return nil
	}
	d := &desk{}
	d.call.Store(p.call(Self{}))
	d.server = &http.Server{Handler: d, ReadHeaderTimeout: answerWithin, ErrorLog: log.New(io.Discard, "", 0)}
	for _, at := range p.listens {
		listener, err := p.listen(at)
		if err != nil {
			d.close()
			return fmt.Errorf("this member cannot listen for its peers: %w", err)
		}
		d.ended.Go(func() { _ = d.server.Serve(listener) }) // ends with the server
	}
	p.desk = d
	return nil
}

// listen listens as etcd will: with auto-tls, with a self-made certificate.
func (p *Peers) listen(at url.URL) (net.Listener, error) {
	plain, speaksTLS := strings.CutSuffix(at.Scheme, "s")
	if !p.anyPeer || !speaksTLS {
		info := p.peerTLS
		return transport.NewListener(at.Host, at.Scheme, &info)
	}
	certificate, err := selfMade()
	if err != nil {
		return nil, err
	}
	listener, err := transport.NewListener(at.Host, plain, nil)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}), nil
}

func (d *desk) close() {
	_ = d.server.Close() // no answer is lost
	d.ended.Wait()
}

// findSelf asks the peer URLs of this member, from the configuration and from the others. The error says that they
// lead elsewhere or nowhere.
func (p *Peers) findSelf(ctx context.Context, urls []string) error {
	if err := p.open(); err != nil {
		return err
	}
	for _, at := range urls {
		var told Call
		if _, err := p.fetch(ctx, p.peer, at+callPath, &told); err != nil {
			return fmt.Errorf("this member does not reach itself where its peers do: %w", err)
		}
		if told.Process != p.process {
			return fmt.Errorf("another process answers at %s", at)
		}
	}
	return nil
}
