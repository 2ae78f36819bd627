// Package peers queries the other members of a cluster on behalf of a member that is not running etcd yet: whether
// they list this member, and whether this member may be replaced. The package also makes the membership changes that
// a replacement requires.
//
// Members are queried at their peer URLs, where any client with a peer certificate can read the member list.
// Requests that require a quorum are sent to the client URLs. With auto-tls or without TLS, every response is
// trusted, because etcd itself trusts its peers in this case. The decisions are made by package recovery.
package peers

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/internal/disk"
)

const (
	requestTimeout = 3 * time.Second // timeout of a request to a single member
	changeTimeout  = 10 * time.Second
	maxResponse    = 4 << 20 // maximum size of a response in bytes; a metrics page has a few hundred kilobytes
)

// Options configure access to the other members, in addition to etcd's configuration.
type Options struct {
	CertFile, KeyFile string // client certificate and key; by default, those of etcd
	User, Password    string // user that may change the membership if authentication is enabled
}

// NewOptions takes the user and password from the environment variables of etcdctl. If they are not set, NewOptions
// uses root and rootPassword, unless that is empty.
func NewOptions(certFile, keyFile, rootPassword string) Options {
	user, password, both := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if !both {
		password = os.Getenv("ETCDCTL_PASSWORD")
	}
	if user == "" && rootPassword != "" {
		user, password = "root", rootPassword
	}
	return Options{CertFile: certFile, KeyFile: keyFile, User: user, Password: password}
}

// Peers queries the other members of the cluster and changes their member list on behalf of this member. Peers is not
// safe for concurrent use.
type Peers struct {
	connections

	urls      []string            // this member's peer URLs
	process   string              // random ID of this process
	server    *statusServer       // nil until the server is listening
	others    map[string][]string // peer URLs of the other members by name
	listed    []string            // peer URLs that are in initial-cluster or that this member advertises
	hosts     map[string]bool     // hosts of the URLs in listed and of the client URLs that this member advertises
	initialID uint64              // ID of this member in a cluster created from the configuration

	checkOwnURLs          func(ctx context.Context, urls []string) error // fails if this member's URLs might lead to another process
	now                   func() time.Time
	received              map[types.ID]string // bytes that each connected member had received from this one at the last check
	quietSince, checkedAt time.Time           // start of the time without evidence of another process; last check
}

// connections connects this member to the others, both as a peer and as an etcd client.
type connections struct {
	Options

	config             *embed.Config
	peer, client       *http.Client
	loadedCAs          string // contents of the CA files, which TLS reads only once
	peerTLS            transport.TLSInfo
	anyPeer, anyServer bool // whether etcd uses auto-tls, in which case certificates are not verified
}

// New returns a Peers for the other members in etcd's configuration, or nil if there are none. An error means that the
// certificates in the configuration cannot be used.
func New(config *embed.Config, options Options) (*Peers, error) {
	cluster, err := types.NewURLsMap(config.InitialCluster)
	if err != nil || cluster[config.Name] == nil || len(cluster) < 2 {
		return nil, nil //nolint:nilerr,nilnil // with discovery, the other members are unknown until etcd runs
	}
	initial, err := membership.NewClusterFromURLsMap(zap.NewNop(), config.InitialClusterToken, cluster)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // etcd reports the same error when it starts
	}
	p := &Peers{
		received: map[types.ID]string{}, hosts: map[string]bool{}, others: map[string][]string{}, now: time.Now,
		process: rand.Text(), urls: types.URLs(config.AdvertisePeerUrls).StringSlice(), initialID: uint64(initial.MemberByName(config.Name).ID),
		connections: connections{
			Options: options, config: config, peerTLS: config.PeerTLSInfo,
			anyPeer: config.PeerAutoTLS && config.PeerTLSInfo.Empty(), anyServer: config.ClientAutoTLS && config.ClientTLSInfo.Empty(),
		},
	}
	p.checkOwnURLs = p.requestOwnURLs
	p.loadedCAs = p.readCAs()
	p.listed = slices.Concat(cluster.URLs(), p.urls)
	for _, each := range slices.Concat(p.listed, types.URLs(config.AdvertiseClientUrls).StringSlice()) {
		p.hosts[hostOf(each)] = true
	}
	for name, urls := range cluster {
		if name != config.Name {
			p.others[name] = urls.StringSlice()
		}
	}
	return p, p.dial()
}

// readCAs returns the contents of the CA files.
func (c *connections) readCAs() (contents string) {
	for _, path := range []string{c.config.PeerTLSInfo.TrustedCAFile, c.config.ClientTLSInfo.TrustedCAFile} {
		content, _ := disk.Read(path, maxResponse) // an unreadable file is reported where it is used
		contents += string(content)
	}
	return contents
}

// reloadCAs reconnects if the CA files have changed. If a file cannot be used, reloadCAs tries again later.
func (p *Peers) reloadCAs() {
	if current := p.readCAs(); current != p.loadedCAs && p.dial() == nil {
		p.loadedCAs = current
		p.Close() // the listener has loaded the old CAs, too; the next Publish opens a new one
	}
}

// hostOf returns the host of a URL, or "" if it has none.
func hostOf(raw string) string {
	parsed, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

// dial creates two HTTP clients: one acts as a peer and one as an etcd client.
func (c *connections) dial() error {
	c.peerTLS.InsecureSkipVerify = c.anyPeer
	peer, err := newClient(c.peerTLS)
	if err != nil {
		return fmt.Errorf("cannot use the peer certificates: %w", err)
	}
	etcd := c.config.ClientTLSInfo
	pair := transport.TLSInfo{CertFile: etcd.CertFile, KeyFile: etcd.KeyFile, TrustedCAFile: etcd.TrustedCAFile, InsecureSkipVerify: c.anyServer}
	if etcd.ClientCertFile != "" {
		pair.CertFile, pair.KeyFile = etcd.ClientCertFile, etcd.ClientKeyFile
	}
	if c.CertFile != "" {
		pair.CertFile, pair.KeyFile = c.CertFile, c.KeyFile
	}
	client, err := newClient(pair)
	if err != nil {
		return fmt.Errorf("cannot use the client certificates: %w", err)
	}
	c.peer, c.client = peer, client
	return nil
}

// newClient returns a client that does not follow redirects, because they would lead to a different member.
func newClient(info transport.TLSInfo) (*http.Client, error) {
	roundTripper, err := transport.NewTransport(info, requestTimeout)
	if err != nil {
		return nil, err
	}
	keepResponse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: roundTripper, Timeout: requestTimeout, CheckRedirect: keepResponse}, nil
}

// Close closes all connections and releases the address that etcd will listen on.
func (p *Peers) Close() {
	if p.server != nil {
		p.server.close()
		p.server = nil
	}
	p.peer.CloseIdleConnections()
	p.client.CloseIdleConnections()
}

// newSelfSignedCertificate returns a certificate like those that etcd creates with auto-tls. The certificate is used
// only for encryption and not for authentication, so it has no name and is not stored.
func newSelfSignedCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, err
}

// statusPath is the path at which a member reports its status while etcd is not running. etcd does not use this path.
const statusPath = "/etcd-wrapper/call"

// A statusServer listens on this member's peer address while the member queries the others. The server returns
// status 503 for all other paths, so that rafthttp retries the requests.
type statusServer struct {
	http.Server
	serving sync.WaitGroup
	status  atomic.Pointer[Status]
}

func (s *statusServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != statusPath {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(s.status.Load()) // an error means that the caller has disconnected
}

// Publish makes the state of this member available to the other members, as Query does.
func (p *Peers) Publish(self Self) { _ = p.publish(self) } // the next Query reports the error

// publish sets the status that other members receive from this member. If the server is not running yet and cannot be
// started, publish returns an error.
func (p *Peers) publish(self Self) error {
	if err := p.serve(); err != nil {
		return err
	}
	p.server.status.Store(&Status{
		Name: p.config.Name, Process: p.process, Cluster: formatID(self.ClusterID), Volume: self.Volume, Restore: self.Restore, Uploaded: self.Uploaded,
	})
	return nil
}

func (p *Peers) serve() error {
	if p.server != nil {
		return nil
	}
	s := &statusServer{}
	s.status.Store(&Status{Name: p.config.Name, Process: p.process})
	s.Handler, s.ReadHeaderTimeout, s.ErrorLog = s, requestTimeout, log.New(io.Discard, "", 0)
	for _, each := range p.config.ListenPeerUrls {
		listener, err := p.listen(each)
		if err != nil {
			s.close()
			return fmt.Errorf("cannot listen on the peer URLs: %w", err)
		}
		s.serving.Go(func() { _ = s.Serve(listener) }) // returns when the server is closed
	}
	p.server = s
	return nil
}

// listen listens like etcd. With auto-tls, the server uses a self-signed certificate.
func (c *connections) listen(address url.URL) (net.Listener, error) {
	plain, usesTLS := strings.CutSuffix(address.Scheme, "s")
	if !c.anyPeer || !usesTLS {
		info := c.peerTLS
		return transport.NewListener(address.Host, address.Scheme, &info)
	}
	certificate, err := newSelfSignedCertificate()
	if err != nil {
		return nil, err
	}
	listener, err := transport.NewListener(address.Host, plain, nil)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}), nil
}

func (s *statusServer) close() {
	_ = s.Close() // a member whose request is cut off repeats it
	s.serving.Wait()
}

// requestOwnURLs checks that all peer URLs of this member, from its configuration and from the other members, lead to
// this process.
func (p *Peers) requestOwnURLs(ctx context.Context, urls []string) error {
	if err := p.serve(); err != nil {
		return err
	}
	for _, url := range urls {
		var status Status
		if _, err := fetch(ctx, p.peer, url+statusPath, &status); err != nil {
			return fmt.Errorf("this member cannot reach itself at its peer URL: %w", err)
		}
		if status.Process != p.process {
			return fmt.Errorf("another process is responding at %s", url)
		}
	}
	return nil
}

// Query queries every other member. From the first call of Query until Close, this member also answers queries from
// the other members. Query returns within a few seconds or when ctx is done.
func (p *Peers) Query(ctx context.Context, self Self) Survey {
	p.reloadCAs()
	var notListening []string
	if err := p.publish(self); err != nil {
		notListening = []string{err.Error()}
	}
	responses, waiting, missing := p.queryAll(ctx, p.others)
	// Members that are not in the configuration need not respond, because a quorum is enough.
	others, _, _ := p.queryAll(ctx, p.onlyListed(responses))
	responses = append(responses, others...)
	s := p.evaluate(responses)
	if s.Membership == Unknown {
		s.Membership = p.withoutCluster(self, responses, waiting)
	}
	revisions := p.queryRevisions(ctx, self, &s, responses)
	s.Missing = joinErrors(slices.Concat(p.describeMissing(self, &s, responses, waiting), revisions, notListening, missing))
	p.addCounts(&s, self, responses, waiting)
	s.Uploaded = !slices.ContainsFunc(waiting, func(status Status) bool { return !status.Uploaded })
	if s.Outdated = checkIdentity(self, &s); s.Outdated == nil && self.MemberID != 0 {
		s.Outdated = p.checkLog(ctx, self, &s)
	}
	if s.Membership == Started || s.Membership == Unlisted {
		s.Blocked = p.checkReplacement(ctx, &s, responses, waiting)
	}
	s.Blocked = cmp.Or(p.queryIdentity(ctx, &s), s.Blocked)
	return s
}

// addCounts adds member counts to a survey.
func (p *Peers) addCounts(s *Survey, self Self, responses []*response, waiting []Status) {
	for _, r := range responses {
		if r.cluster == strconv.FormatUint(self.ClusterID, 16) {
			s.Running, s.Voters = s.Running+1, max(s.Voters, len(voters(r.members)))
		}
	}
	// with counts the waiting members whose data may belong to this cluster, so that they can be part of a quorum.
	without, with := 0, 0
	for _, status := range waiting {
		if status.Volume == Older {
			s.Older++
		}
		if usable := status.Volume != Nothing && status.Volume != Unusable; usable && (status.Cluster == "" || status.Cluster == formatID(self.ClusterID)) {
			with++
		} else {
			without++
		}
	}
	quorum := (1+len(p.others))/2 + 1
	s.NoQuorumElsewhere = without > 0 && with == 0 && len(p.others)-without < quorum
}

// formatID formats an ID like etcd, except that 0 becomes "".
func formatID(id uint64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(id, 16)
}

// onlyListed returns the members that are in a response but not in the configuration, with their peer URLs.
func (p *Peers) onlyListed(responses []*response) map[string][]string {
	more, asked := map[string][]string{}, slices.Concat(slices.Collect(maps.Values(p.others))...)
	for _, r := range responses {
		for _, m := range r.members {
			if !slices.ContainsFunc(m.PeerURLs, func(url string) bool { return p.isSelfURL(url) || slices.Contains(asked, url) }) {
				more[m.ID.String()] = m.PeerURLs
			}
		}
	}
	return more
}

// queryAll queries the given members in parallel. The result contains the member lists of the members that run etcd,
// the statuses of those that do not, and a clause for each member that does not respond.
func (p *Peers) queryAll(ctx context.Context, members map[string][]string) (responses []*response, waiting []Status, missing []string) {
	var mu sync.Mutex
	var requests sync.WaitGroup
	for name, urls := range members {
		requests.Go(func() {
			members, err := p.listMembers(ctx, name, urls)
			var status Status
			waits := err != nil && p.readStatus(ctx, name, urls, &status)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				responses = append(responses, members)
			case waits:
				waiting = append(waiting, status)
			default:
				missing = append(missing, fmt.Sprintf("%s does not respond (%v)", name, remoteError{err}))
			}
		})
	}
	requests.Wait()
	slices.SortFunc(responses, func(a, b *response) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(waiting, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(missing)
	return responses, waiting, missing
}

// listMembers returns the first response from a member's URLs.
func (p *Peers) listMembers(ctx context.Context, name string, urls []string) (*response, error) {
	err := errors.New("the member has no URL")
	for _, url := range urls {
		r := &response{name: name, url: url}
		if r.cluster, err = fetch(ctx, p.peer, url+"/members", &r.members); err != nil {
			continue
		}
		id, noID := types.IDFromString(r.cluster)
		r.cluster = id.String()
		if err = validate(r.members); err == nil && noID == nil {
			return r, nil
		}
		err = fmt.Errorf("ignoring the response from %s: %w", url, cmp.Or(err, errors.New("the response has no cluster ID")))
	}
	return nil, err
}

// readStatus requests the status of a member that is not running etcd.
func (p *Peers) readStatus(ctx context.Context, name string, urls []string, status *Status) bool {
	return slices.ContainsFunc(urls, func(url string) bool {
		_, err := fetch(ctx, p.peer, url+statusPath, status)
		return err == nil && status.Name == name
	})
}

// fetch requests a JSON document and returns the cluster ID in the header of the response. If document is a *string,
// fetch stores the body in it without decoding it, and returns no cluster ID.
func fetch(ctx context.Context, client *http.Client, url string, document any) (cluster string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: status %d", url, response.StatusCode)
	}
	body := io.LimitReader(response.Body, maxResponse)
	if text, plain := document.(*string); plain {
		content, err := io.ReadAll(body)
		*text = string(content)
		return "", err
	}
	if err := json.NewDecoder(body).Decode(document); err != nil {
		return "", fmt.Errorf("%s: cannot decode the response", url)
	}
	return response.Header.Get("X-Etcd-Cluster-ID"), nil
}

// openedRevision publishes the revision of the data with which this member was started. etcd's own metrics include
// only applied revisions, but the log may contain more if there is no quorum.
var openedRevision = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_revision",
	Help: "Highest revision that etcd's data could reach when it was opened, from the database and the write-ahead log; 0 if unknown.",
})

// openedCluster publishes the cluster and the generation of the data. etcd derives its cluster ID from the
// configuration, so two clusters can have the same ID.
var openedCluster = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_cluster",
	Help: "Cluster and generation that etcd's data belongs to; always 1.",
}, []string{"cluster", "generation"})

func init() { prometheus.MustRegister(openedRevision, openedCluster) } //nolint:gochecknoinits // etcd serves the default registry

// PublishOpened publishes the cluster and the highest revision of the data that etcd is about to open.
func PublishOpened(revision int64, identity archive.Identity) {
	openedRevision.Set(float64(revision))
	openedCluster.Reset()
	if identity.Known() {
		openedCluster.WithLabelValues(identity.Cluster, strconv.Itoa(identity.Generation)).Set(1)
	}
}

var openedClusterLine = regexp.MustCompile(`(?m)^etcd_wrapper_opened_cluster\{cluster="([0-9a-f]{1,64})",generation="(\d{1,9})"\} 1$`)

// queryIdentity adds the cluster, generation and size of the running members' data to a survey. An error means that
// the data of different members belongs to different clusters.
func (p *Peers) queryIdentity(ctx context.Context, s *Survey) error {
	for _, m := range s.Others() {
		page, err := p.fetchPage(ctx, m, "/metrics")
		if err != nil {
			continue // another member may know the identity
		}
		s.Size = max(s.Size, maxMetric(page, "etcd_mvcc_db_total_size_in_bytes"))
		labels := openedClusterLine.FindStringSubmatch(page)
		if labels == nil {
			continue
		}
		if s.ID != "" && s.ID != labels[1] {
			return fmt.Errorf("the other members belong to different clusters: %s belongs to %s, but another member to %s", nameOf(m), labels[1], s.ID)
		}
		generation, _ := strconv.Atoi(labels[2]) // the label contains only digits
		s.ID, s.Generation = labels[1], max(s.Generation, generation)
	}
	return nil
}

// queryRevisions returns, if there is no quorum, a clause with the revision of each running member of the volume's
// cluster. Reading a revision requires no quorum.
func (p *Peers) queryRevisions(ctx context.Context, self Self, s *Survey, responses []*response) (clauses []string) {
	for _, r := range responses {
		if s.Membership != NoQuorum || self.ClusterID == 0 || r.cluster != formatID(self.ClusterID) {
			continue
		}
		page, err := p.fetchPage(ctx, r.own(), "/metrics")
		revision := maxMetric(page, "etcd_debugging_mvcc_current_revision", "etcd_wrapper_opened_revision")
		if revision == 0 {
			err = cmp.Or(err, errors.New("no revision in the metrics"))
			clauses = append(clauses, fmt.Sprintf("the revision of %s is unknown (%v)", r.name, remoteError{err}))
			continue
		}
		s.Revision = max(s.Revision, revision)
		clauses = append(clauses, fmt.Sprintf("%s is at revision %d", r.name, revision))
	}
	return clauses
}

// maxMetric returns the largest value of the named metrics on a page, or 0 if the page has none of them.
func maxMetric(page string, names ...string) (largest int64) {
	for _, name := range names {
		if value, err := strconv.ParseFloat(metric(page, name), 64); err == nil {
			largest = max(largest, int64(value))
		}
	}
	return largest
}
