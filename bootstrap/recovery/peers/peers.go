package peers

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"
)

const (
	answerWithin = 3 * time.Second // for a question to one member
	changeWithin = 10 * time.Second
	answerSize   = 4 << 20 // bytes of an answer that are read; a page of metrics has some hundred thousand
)

// Options are what reaches the other members beside etcd's configuration.
type Options struct {
	CertFile, KeyFile string // a client's pair; etcd's own if they are empty
	User, Password    string // with authentication on: who may change the members
}

// OptionsOf takes user and password from etcdctl's environment.
func OptionsOf(certFile, keyFile string) Options {
	user, password, both := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if !both {
		password = os.Getenv("ETCDCTL_PASSWORD")
	}
	return Options{CertFile: certFile, KeyFile: keyFile, User: user, Password: password}
}

// Peers are the other members of one member's cluster. One question at a time may be asked.
type Peers struct {
	name     string
	urls     []string            // this member's peer URLs
	listens  []url.URL           // where it listens for peers
	process  string              // tells this process from others
	desk     *desk               // that answers there; nil before it could listen
	others   map[string][]string // the peer URLs of the others, by name
	founding uint64              // the id that this member has if the cluster is founded as configured

	peer, client       *http.Client
	peerTLS            transport.TLSInfo
	clientTLS          *tls.Config
	user, password     string
	answersHere        func(context.Context) error // why it is not known that this process is where peers find the member
	now                func() time.Time
	heard              map[types.ID]string // how many bytes others with a connection to the member had from it
	quietSince, looked time.Time           // since when nobody was seen to have the member's data, and when that was last looked at
	called             time.Time           // when the roll was called first
}

// Of finds the other members in etcd's configuration. It returns nil if it names none, or has etcd make certificates for
// peers, by which nobody can tell who answers. The error says that certificates that
// it names cannot be used.
func Of(config *embed.Config, options Options) (*Peers, error) {
	cluster, err := types.NewURLsMap(config.InitialCluster)
	if err != nil || cluster[config.Name] == nil || len(cluster) < 2 || config.PeerAutoTLS && config.PeerTLSInfo.Empty() {
		return nil, nil //nolint:nilerr,nilnil // members that are found in another way cannot be asked before etcd runs
	}
	founded, err := membership.NewClusterFromURLsMap(zap.NewNop(), config.InitialClusterToken, cluster)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // etcd says it
	}
	p := &Peers{
		heard: map[types.ID]string{},
		name:  config.Name, process: rand.Text(), urls: types.URLs(config.AdvertisePeerUrls).StringSlice(), listens: config.ListenPeerUrls, others: map[string][]string{},
		founding: uint64(founded.MemberByName(config.Name).ID), peerTLS: config.PeerTLSInfo, user: options.User, password: options.Password,
		now: time.Now,
	}
	p.answersHere = p.findSelf
	for name, urls := range cluster {
		if name != config.Name {
			p.others[name] = urls.StringSlice()
		}
	}
	return p, p.dial(config, options)
}

// dial makes the clients: one as a peer, one as etcd's clients.
func (p *Peers) dial(config *embed.Config, options Options) error {
	asPeer, err := transport.NewTransport(p.peerTLS, answerWithin)
	if err != nil {
		return fmt.Errorf("cannot use the certificates for peers: %w", err)
	}
	p.peer = &http.Client{Transport: asPeer, Timeout: answerWithin}
	pair := transport.TLSInfo{
		CertFile: config.ClientTLSInfo.CertFile, KeyFile: config.ClientTLSInfo.KeyFile, TrustedCAFile: config.ClientTLSInfo.TrustedCAFile,
	}
	if config.ClientTLSInfo.ClientCertFile != "" {
		pair.CertFile, pair.KeyFile = config.ClientTLSInfo.ClientCertFile, config.ClientTLSInfo.ClientKeyFile
	}
	if options.CertFile != "" {
		pair.CertFile, pair.KeyFile = options.CertFile, options.KeyFile
	}
	asClient, err := transport.NewTransport(pair, answerWithin)
	if err != nil {
		return fmt.Errorf("cannot use the certificates for clients: %w", err)
	}
	p.client, p.clientTLS = &http.Client{Transport: asClient, Timeout: answerWithin}, asClient.TLSClientConfig
	return nil
}

// Close lets go of connections, and of the address that etcd needs.
func (p *Peers) Close() {
	if p.desk != nil {
		p.desk.close()
		p.desk = nil
	}
	p.peer.CloseIdleConnections()
	p.client.CloseIdleConnections()
}

// Names are those of the other members that are configured.
func (p *Peers) Names() []string { return slices.Sorted(maps.Keys(p.others)) }

// Ask asks every other member, and answers them from the first time on until Close. It returns within some seconds, or when
// ctx ends.
func (p *Peers) Ask(ctx context.Context, self Self) Census {
	deaf := p.open()
	if deaf == nil { // otherwise the others don't hear of this member, and wait
		p.desk.say(Call{Name: p.name, Process: p.process, Holds: self.Holds, Restore: self.Restore, Brought: self.Brought})
	}
	answers, calls, silent := p.askAll(ctx, p.others)
	if more := p.notAsked(answers); len(more) > 0 {
		further, _, _ := p.askAll(ctx, more) // a quorum of those that are configured may do without
		answers = append(answers, further...)
	}
	c, by := p.judge(answers)
	c.Silent = both(deaf, silent)
	c.Brought = !slices.ContainsFunc(calls, func(call Call) bool { return !call.Brought })
	if c.Listing == Unknown {
		c.Listing = p.roll(self, answers, calls)
	}
	if c.Outdated = former(self, &c); c.Outdated == nil && self.MemberID != 0 {
		c.Outdated = p.forgot(ctx, self, &c)
	}
	if c.Listing == Started || c.Listing == Unlisted {
		c.InTheWay = p.inTheWay(ctx, &c, by)
	}
	return c
}

// notAsked are members that an answer names and the configuration does not.
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

// askAll asks members at the same time.
func (p *Peers) askAll(ctx context.Context, whom map[string][]string) (answers []*answer, calls []Call, silent error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	failed := map[string]error{}
	for name, urls := range whom {
		asking.Go(func() {
			told, err := p.ask(ctx, name, urls)
			call, waits := p.hear(ctx, name, urls, err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				answers = append(answers, told)
			case waits:
				calls = append(calls, call)
			default:
				failed[name] = err
			}
		})
	}
	asking.Wait()
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		reasons = append(reasons, fmt.Sprintf("%s does not answer (%v)", name, failed[name]))
	}
	if len(reasons) > 0 {
		silent = errors.New(strings.Join(reasons, "; "))
	}
	return answers, calls, silent
}

// ask returns the first answer of one member's URLs.
func (p *Peers) ask(ctx context.Context, name string, urls []string) (*answer, error) {
	err := errors.New("it has no URL")
	for _, at := range urls {
		told := &answer{name: name, url: at}
		if told.cluster, err = p.fetch(ctx, p.peer, at+"/members", &told.members); err != nil {
			continue
		}
		if _, err = types.IDFromString(told.cluster); err == nil && len(told.members) > 0 {
			return told, nil
		}
		err = fmt.Errorf("what answers at %s tells no cluster", at)
	}
	return nil, err
}

// fetch reads a document, and the id of the cluster that it came from.
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
