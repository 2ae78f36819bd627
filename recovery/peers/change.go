package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/maintenance"
)

// Remove removes this member from the cluster, provided that the survey is still valid. It requires a quorum and
// may be repeated.
func (p *Peers) Remove(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
		i := slices.IndexFunc(members, func(m *etcdserverpb.Member) bool { return m.ID == uint64(s.Own.ID) })
		if i < 0 {
			return nil
		}
		voting := slices.DeleteFunc(slices.Clone(members), func(m *etcdserverpb.Member) bool { return m.IsLearner })
		if !members[i].IsLearner && len(voting) < minVoters {
			return fmt.Errorf("the cluster has only %d voting members now", len(voting))
		}
		if members[i].IsLearner {
			promoted, err := hasLease(ctx, client, maintenance.PromoteLease(p.config.Name))
			if err == nil && !promoted {
				err = grantLease(ctx, client, maintenance.ManualLease(p.config.Name), maintenance.ManualLeaseTTL)
			}
			if err != nil {
				return fmt.Errorf("cannot read whether this learner should be promoted: %w", err)
			}
		}
		_, err := client.MemberRemove(ctx, uint64(s.Own.ID))
		return err
	})
}

// Add adds this member to the cluster, unless it was already added. It requires a quorum and may be repeated. The
// member is added as a learner, which is promoted once it has caught up, or stays a learner if a user had added it
// as one.
func (p *Peers) Add(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
		for _, m := range members {
			if m.Name == p.config.Name || slices.ContainsFunc(m.PeerURLs, p.isSelfURL) {
				return nil
			}
			if m.IsLearner || len(m.ClientURLs) == 0 {
				return errors.New("another member is about to join")
			}
		}
		byHand, err := hasLease(ctx, client, maintenance.ManualLease(p.config.Name))
		if err == nil && !byHand {
			err = grantLease(ctx, client, maintenance.PromoteLease(p.config.Name), maintenance.PromoteLeaseTTL)
		}
		switch {
		case (errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrCorrupt)) && len(members)%2 == 0: // all members are voters
			// With one of these alarms, the cluster grants no leases. Adding a voter to an even number of voters
			// does not increase the quorum, and clients cannot write, so a voter without data delays no writes.
			_, err = client.MemberAdd(ctx, p.urls)
		case err == nil:
			_, err = client.MemberAddAsLearner(ctx, p.urls)
		}
		return err
	})
}

// hasLease reports whether the cluster has the lease with this ID, which records a fact about a learner.
func hasLease(ctx context.Context, client *clientv3.Client, id int64) (bool, error) {
	granted, err := client.TimeToLive(ctx, clientv3.LeaseID(id))
	return err == nil && granted.TTL >= 0, err
}

// grantLease grants a lease for ttl seconds.
func grantLease(ctx context.Context, client *clientv3.Client, id, ttl int64) error {
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return fmt.Errorf("the cluster grants no lease: %w", err)
	}
	return nil
}

// Promote makes the survey's own member a voter. It requires a quorum and may be repeated. etcd accepts the
// promotion once the member has caught up.
func (p *Peers) Promote(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, _ []*etcdserverpb.Member) error {
		_, err := client.MemberPromote(ctx, uint64(s.Own.ID))
		return err
	})
}

// change changes the membership through the client endpoints of the other members.
func (p *Peers) change(ctx context.Context, s *Survey, apply func(context.Context, *clientv3.Client, []*etcdserverpb.Member) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	config := clientv3.Config{
		Context: ctx, TLS: p.client.Transport.(*http.Transport).TLSClientConfig, DialTimeout: requestTimeout, Logger: zap.NewNop(),
	}
	config.Endpoints, config.Username, config.Password = p.endpoints(s)
	client, err := clientv3.New(config)
	if err != nil {
		return p.withHint(fmt.Errorf("cannot connect to the other members: %w", err), config.Username)
	}
	defer client.Close() // nothing needs it after this
	list, err := client.MemberList(ctx)
	if err == nil && fmt.Sprintf("%x", list.Header.ClusterId) != s.Cluster {
		err = fmt.Errorf("cluster %x answers instead of %s", list.Header.ClusterId, s.Cluster)
	}
	for i := 0; err == nil && i < len(list.Members); i++ { // repeats the checks of checkReplacement at the time of the change
		err = p.checkURLs(list.Members[i].Name, list.Members[i].PeerURLs)
	}
	if err == nil {
		err = apply(ctx, client, list.Members)
	}
	return p.withHint(p.withCause(context.WithoutCancel(ctx), s, err), config.Username)
}

// withCause adds the reason why the other members do not respond to a client, because gRPC reports only a timeout.
func (p *Peers) withCause(ctx context.Context, s *Survey, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, m := range s.Others() {
		_, cause := p.fetchPage(ctx, m, "/version")
		var failed *net.OpError
		switch {
		case cause == nil:
		case errors.As(cause, &failed) && failed.Op == "remote error":
			return fmt.Errorf("%w: %w; give a certificate that they accept with --etcd-client-cert-path", err, cause)
		default:
			return fmt.Errorf("%w: %w", err, cause)
		}
	}
	return err
}

// endpoints returns the client URLs of the other members, and the user and password to send. A password is sent
// only over connections that others cannot read, and only to members that the configuration names or whose peers
// have presented verified certificates. If no URL qualifies, it is not sent.
func (p *Peers) endpoints(s *Survey) (urls []string, user, password string) {
	for _, m := range voters(s.Others()) {
		urls = append(urls, m.ClientURLs...)
	}
	isPlain := func(raw string) bool { return !strings.HasPrefix(raw, "https:") }
	verified := len(p.others) > 0 && !p.anyPeer && !slices.ContainsFunc(p.otherURLs(), isPlain)
	private := slices.DeleteFunc(slices.Clone(urls), func(raw string) bool {
		// A URL is trusted if its host is in the configuration, or if all peers that returned it have presented
		// verified certificates.
		isTrusted := p.hosts[hostOf(raw)] || verified
		return p.isReadable(raw) || !isTrusted
	})
	if p.User == "" || len(private) == 0 {
		return urls, "", ""
	}
	return private, p.User, p.Password
}

// isReadable reports whether a third party could read data sent to a URL, possibly by presenting its own
// certificate.
func (p *Peers) isReadable(raw string) bool {
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Scheme == "https" && !p.anyServer {
		return err != nil
	}
	host := parsed.Hostname()
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// authErrors lists etcd's errors for a user that may not change the membership.
var authErrors = []error{
	rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
}

// withHint adds the way out to an authentication error. Text from a member is shortened to the part that users
// need.
func (p *Peers) withHint(err error, user string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("%w: enough voting members have to be connected for 5 s before etcd changes them: start those that do not run, "+
			"or remove one that is gone for good with etcdctl member remove", remoteError{err})
	case !slices.ContainsFunc(authErrors, func(each error) bool { return errors.Is(err, each) }):
		return remoteError{err}
	case p.User != "" && user == "":
		return fmt.Errorf("authentication is on, and ETCDCTL_PASSWORD is not sent to the others, whose client URLs are plain http or auto-tls, or have hosts that the configuration does not name: "+
			"give them https with certificates, or this member a client certificate whose common name is root: %w", remoteError{err})
	default:
		return fmt.Errorf("authentication is on, and only root changes the members: give ETCDCTL_USER=root and ETCDCTL_PASSWORD, "+
			"or a client certificate whose common name is root: %w", remoteError{err})
	}
}

const (
	// minVoters is the number of voting members that a cluster needs so that one can be replaced: the others are a
	// quorum, and remain one even if another member fails briefly.
	minVoters = 3
	// quietTime is the required time without a sign of another process that uses this member's data, if the absence
	// of such a process cannot be proved immediately.
	quietTime = time.Minute
	// silentTime applies instead if this process has the member's address and the only counterevidence is the count
	// of a silent connection. In that time, a running member would answer many heartbeats or request votes.
	silentTime = 10 * time.Second
	// maxCheckPause is the longest pause between two checks that are considered continuous.
	maxCheckPause = time.Minute
)

// ErrTooFew reports that the cluster has no quorum without this member, so the member cannot be replaced.
var ErrTooFew = errors.New("the others are no quorum, which is needed to replace this member")

// checkReplacement returns what currently prevents this member from being replaced or added.
func (p *Peers) checkReplacement(ctx context.Context, s *Survey, responses []*response, waiting []Status) error {
	if n := len(voters(s.Members)); s.Membership == Started && n < minVoters && !s.Own.IsLearner { // in this case, no other member can be promoted or removed either
		return fmt.Errorf("of %d voting members %w", n, ErrTooFew)
	}
	if err := checkPending(s); err != nil {
		return err
	}
	for _, m := range s.Members {
		if err := p.checkURLs(nameOf(m), m.PeerURLs); err != nil {
			return err
		}
	}
	if s.Membership == Unlisted {
		return nil
	}
	if err := p.checkVersions(ctx, s, responses); err != nil {
		return err
	}
	return p.checkDataInUse(ctx, s, waiting)
}

// checkURLs returns an error if a member has a peer URL that is not in initial-cluster: a hostname may briefly lead
// to another cluster, which may have a member of the same name.
func (p *Peers) checkURLs(name string, urls []string) error {
	for _, url := range urls {
		if !slices.Contains(p.listed, url) {
			return fmt.Errorf("the cluster that answers has %s at %s, which initial-cluster does not name, so it may be another cluster, and its members are not changed; "+
				"if it is this one, name that URL in initial-cluster", shorten(name), shorten(url))
		}
	}
	return nil
}

// checkVersions returns an error if the members run different minor versions, because the membership must not
// change during an upgrade. Members that keep their data readable for an older etcd announce its version and are
// ignored.
func (p *Peers) checkVersions(ctx context.Context, s *Survey, responses []*response) error {
	for _, r := range responses {
		if r.cluster != s.Cluster {
			continue
		}
		var reported version.Versions
		if _, err := fetch(ctx, p.peer, r.url+"/version", &reported); err != nil {
			return fmt.Errorf("the version of the member at %s is unknown: %w", r.url, err)
		}
		if dataversion.Parse(dataversion.ActualVersion(reported.Server)) != dataversion.Parse(dataversion.Embedded) {
			return fmt.Errorf("the member at %s runs etcd %s, and this one %s: upgrade all members to one version first", r.url, shorten(reported.Server), dataversion.Embedded)
		}
	}
	return nil
}

// checkDataInUse returns an error if this member's data may be in use by another process. It is not in use if the
// other members have no connection to it and everything that they send arrives here: then no process can use the
// data while this one is running. If one of the two cannot be determined, there must be no counterevidence for a
// minute or, if another member counts a connection that stays silent, for ten seconds.
func (p *Peers) checkDataInUse(ctx context.Context, s *Survey, waiting []Status) error {
	now := p.now()
	unsure := p.checkConnections(ctx, s, waiting)
	if errors.Is(unsure, errConnected) {
		p.quietSince = time.Time{}
		return unsure
	}
	needed := quietTime
	if err := p.checkOwnURLs(ctx, slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.urls, s.Own.PeerURLs))))); err != nil {
		unsure = err
	} else if errors.Is(unsure, errSilent) {
		needed = silentTime
	}
	if p.quietSince.IsZero() || now.Sub(p.checkedAt) > maxCheckPause {
		p.quietSince = now
	}
	p.checkedAt = now
	if unsure == nil || now.Sub(p.quietSince) >= needed {
		return nil
	}
	return fmt.Errorf("whether another process has its data is being checked for %v: %w", needed, unsure)
}

var errConnected = errors.New("it is connected to a process that has this member's data; stop that process")

// errSilent reports a connection on which nothing arrives.
var errSilent = errors.New("it is connected but receives nothing")

// checkConnections asks the other members whether they are connected to this member, which etcd's metrics show. A
// member that once received a snapshot counts each connection twice, so it may count a connection that has ended.
// On a real connection, heartbeats or vote requests arrive sooner or later; unsure is returned for a silent one.
// Members that have reported that they run no etcd have no connections.
func (p *Peers) checkConnections(ctx context.Context, s *Survey, waiting []Status) (unsure error) {
	silent := error(nil)
	for _, m := range s.Others() {
		if slices.ContainsFunc(waiting, func(status Status) bool { return status.Name == m.Name && status.Volume != Data }) {
			delete(p.received, m.ID)
			continue
		}
		page, err := p.fetchPage(ctx, m, "/metrics")
		if err != nil {
			unsure = fmt.Errorf("%s does not report its connections: %w", nameOf(m), err)
			continue
		}
		count := metric(page, fmt.Sprintf("etcd_network_active_peers{Local=%q,Remote=%q}", m.ID, s.Own.ID))
		if count == "" || count == "0" {
			delete(p.received, m.ID)
			continue
		}
		received := metric(page, fmt.Sprintf("etcd_network_peer_received_bytes_total{From=%q}", s.Own.ID))
		if before, known := p.received[m.ID]; !known || before != received {
			p.received[m.ID] = received
			return fmt.Errorf("%s reports that %w", nameOf(m), errConnected)
		}
		silent = fmt.Errorf("%s reports that %w", nameOf(m), errSilent)
	}
	return cmp.Or(unsure, silent)
}

// fetchPage reads a page from one of a member's client URLs.
func (c *connections) fetchPage(ctx context.Context, m Member, path string) (text string, err error) {
	err = errors.New("it has no client URL")
	for _, url := range m.ClientURLs {
		if _, err = fetch(ctx, c.client, strings.TrimSuffix(url, "/")+path, &text); err == nil {
			return text, nil
		}
	}
	return "", err
}

// metric returns the value of a metric with its labels, or "" if the page lacks it.
func metric(page, name string) string {
	_, rest, _ := strings.Cut("\n"+page, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// checkLog returns an error if the volume lacks entries that this member has confirmed to the leader, which means
// that it was rolled back. etcd would panic (tocommit is out of range) or violate raft's guarantees. The
// information is lost when the leader changes, so nil proves nothing.
func (p *Peers) checkLog(ctx context.Context, self Self, s *Survey) error {
	if s.Membership != Started || self.Index == 0 {
		return nil
	}
	for _, m := range s.Others() {
		var published struct {
			Raft struct {
				Progress map[string]struct {
					Match uint64 `json:"match"`
				} `json:"progress"`
			} `json:"raft.status"`
		}
		page, err := p.fetchPage(ctx, m, "/debug/vars")
		if err != nil || json.Unmarshal([]byte(page), &published) != nil {
			continue
		}
		if confirmed := published.Raft.Progress[s.Own.ID.String()].Match; confirmed > self.Index {
			return fmt.Errorf("their log ends at entry %d, but this member has confirmed entry %d to %s", self.Index, confirmed, nameOf(m))
		}
	}
	return nil
}

const (
	// DowngradeWait bounds the time for which a new member waits until its peers have canceled a downgrade. They
	// check once a second, and an election takes a few seconds more.
	DowngradeWait = time.Minute
	// downgradePoll is the pause between two polls for the end of a downgrade.
	downgradePoll = 500 * time.Millisecond
)

// AwaitVersion waits until etcd would admit this member, which has no data, to the running cluster that it joins,
// and returns the cluster version. The error is final if a peer runs an etcd that this one must not join; otherwise
// a downgrade was enabled for longer than bound, or ctx is done. report is called once, with the reason for
// waiting. If no peer is reachable, AwaitVersion immediately returns a zero version, because etcd detects that as
// well and explains it better.
func (p *Peers) AwaitVersion(ctx context.Context, bound time.Duration, report func(reason string)) (dataversion.Version, error) {
	wait, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("it has lasted for %s", bound))
	defer cancel()
	for first := true; p.isDowngrading(ctx); first = false {
		if first {
			report("waits until its peers finish a downgrade, during which etcd admits no new members")
		}
		if clock.Sleep(wait, downgradePoll) != nil {
			return dataversion.Version{}, fmt.Errorf("cannot join during a downgrade of the cluster, when etcd admits no new member: %w; "+
				"end it with `etcdctl downgrade cancel` on one of the members", context.Cause(wait))
		}
	}
	var highest, oldest dataversion.Version // a peer that was down may not know the cluster version
	for _, url := range p.otherURLs() {
		var reported version.Versions
		if _, err := fetch(ctx, p.peer, url+"/version", &reported); err != nil {
			continue
		}
		if v := dataversion.Parse(reported.Cluster); highest.Less(v) {
			highest = v
		}
		if v := dataversion.Parse(reported.Server); v != (dataversion.Version{}) && (oldest == (dataversion.Version{}) || v.Less(oldest)) {
			oldest = v
		}
	}
	return highest, dataversion.CheckOldest(oldest)
}

func (p *Peers) otherURLs() []string {
	return slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(p.others))...)))
}

// isDowngrading reports whether a downgrade is enabled, according to the first peer that responds. That peer asks
// its leader, so one response is sufficient.
func (p *Peers) isDowngrading(ctx context.Context) bool {
	for _, url := range p.otherURLs() {
		var text string
		if _, err := fetch(ctx, p.peer, url+etcdserver.DowngradeEnabledPath, &text); err != nil {
			continue
		}
		if enabled, err := strconv.ParseBool(text); err == nil {
			return enabled
		}
	}
	return false
}
