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

// Remove removes this member from the cluster if the survey is still valid. Remove requires a quorum and may be
// repeated.
func (p *Peers) Remove(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
		i := slices.IndexFunc(members, func(m *etcdserverpb.Member) bool { return m.ID == uint64(s.Own.ID) })
		if i < 0 {
			return nil
		}
		voting := slices.DeleteFunc(slices.Clone(members), func(m *etcdserverpb.Member) bool { return m.IsLearner })
		if !members[i].IsLearner && len(voting) < minVoters {
			return fmt.Errorf("the cluster now has only %d voting members", len(voting))
		}
		if members[i].IsLearner {
			promoted, err := hasLease(ctx, client, maintenance.PromoteLease(p.config.Name))
			if err == nil && !promoted {
				err = grantLease(ctx, client, maintenance.ManualLease(p.config.Name), maintenance.ManualLeaseTTL)
			}
			if err != nil {
				return fmt.Errorf("cannot determine whether this learner should be promoted: %w", err)
			}
		}
		_, err := client.MemberRemove(ctx, uint64(s.Own.ID))
		return err
	})
}

// Add adds this member to the cluster as a learner unless it has already been added. The learner is promoted once
// it has caught up, unless a user had added it as a learner. Add requires a quorum and may be repeated.
func (p *Peers) Add(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, members []*etcdserverpb.Member) error {
		for _, m := range members {
			if m.Name == p.config.Name || slices.ContainsFunc(m.PeerURLs, p.isSelfURL) {
				return nil
			}
			if m.IsLearner || len(m.ClientURLs) == 0 {
				return errors.New("another member is joining")
			}
		}
		byHand, err := hasLease(ctx, client, maintenance.ManualLease(p.config.Name))
		if err == nil && !byHand {
			err = grantLease(ctx, client, maintenance.PromoteLease(p.config.Name), maintenance.PromoteLeaseTTL)
		}
		switch {
		case (errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrCorrupt)) && len(members)%2 == 0:
			// A cluster with one of these alarms does not grant leases. All members are voters here. Adding a voter
			// to an even number of voters does not increase the quorum size, and a voter without data delays no
			// writes because clients cannot write.
			_, err = client.MemberAdd(ctx, p.urls)
		case err == nil:
			_, err = client.MemberAddAsLearner(ctx, p.urls)
		}
		return err
	})
}

// hasLease reports whether the cluster has a lease with this ID. Leases record in the cluster whether a learner is to
// be promoted (see maintenance.PromoteLease).
func hasLease(ctx context.Context, client *clientv3.Client, id int64) (bool, error) {
	granted, err := client.TimeToLive(ctx, clientv3.LeaseID(id))
	return err == nil && granted.TTL >= 0, err
}

// grantLease grants a lease for ttl seconds.
func grantLease(ctx context.Context, client *clientv3.Client, id, ttl int64) error {
	_, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: id, TTL: ttl})
	if err = rpctypes.Error(err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return fmt.Errorf("cannot get a lease from the cluster: %w", err)
	}
	return nil
}

// Promote makes this member a voter. etcd rejects the promotion until the member has caught up. Promote requires a
// quorum and may be repeated.
func (p *Peers) Promote(ctx context.Context, s *Survey) error {
	return p.change(ctx, s, func(ctx context.Context, client *clientv3.Client, _ []*etcdserverpb.Member) error {
		_, err := client.MemberPromote(ctx, uint64(s.Own.ID))
		return err
	})
}

// change calls apply with a client of the other members and their current member list, unless the list is from another
// cluster than the survey or has peer URLs that are not in initial-cluster.
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
	defer client.Close() // all requests are complete, so a close error is harmless
	list, err := client.MemberList(ctx)
	if err == nil && fmt.Sprintf("%x", list.Header.ClusterId) != s.Cluster {
		err = fmt.Errorf("the response is from cluster %x instead of %s", list.Header.ClusterId, s.Cluster)
	}
	// The URLs may have changed since checkReplacement checked them.
	for i := 0; err == nil && i < len(list.Members); i++ {
		err = p.checkURLs(list.Members[i].Name, list.Members[i].PeerURLs)
	}
	if err == nil {
		err = apply(ctx, client, list.Members)
	}
	return p.withHint(p.withCause(context.WithoutCancel(ctx), s, err), config.Username)
}

// withCause adds the reason why the other members do not respond to clients. gRPC itself reports only a timeout.
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
			return fmt.Errorf("%w: %w; set --etcd-client-cert-path to a certificate that the other members accept", err, cause)
		default:
			return fmt.Errorf("%w: %w", err, cause)
		}
	}
	return err
}

// endpoints returns the client URLs of the other members, and the user and password to send to them. A password is
// sent only over connections that third parties cannot read and, unless all peers have verified certificates, only
// to hosts in the configuration. If no URL qualifies, the user and password are empty.
func (p *Peers) endpoints(s *Survey) (urls []string, user, password string) {
	for _, m := range voters(s.Others()) {
		urls = append(urls, m.ClientURLs...)
	}
	isUnencrypted := func(raw string) bool { return !strings.HasPrefix(raw, "https:") }
	verified := len(p.others) > 0 && !p.anyPeer && !slices.ContainsFunc(p.otherURLs(), isUnencrypted)
	safe := slices.DeleteFunc(slices.Clone(urls), func(raw string) bool {
		// A URL is trusted if the configuration contains its host or if all peers that returned it have verified
		// certificates.
		isTrusted := p.hosts[hostOf(raw)] || verified
		return p.isReadable(raw) || !isTrusted
	})
	if p.User == "" || len(safe) == 0 {
		return urls, "", ""
	}
	return safe, p.User, p.Password
}

// isReadable reports whether a third party could read data sent to a URL, for example by presenting its own
// certificate.
func (p *Peers) isReadable(raw string) bool {
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Scheme == "https" && !p.anyServer {
		return err != nil
	}
	host := parsed.Hostname()
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// authErrors lists etcd's errors for a user that is not allowed to change the membership.
var authErrors = []error{
	rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
}

// withHint adds the way out to an authentication error. Errors from other members are shortened.
func (p *Peers) withHint(err error, user string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("%w: etcd changes the membership only if enough voting members have been connected for 5s; start the members that are down, "+
			"or remove a member that is gone for good with \"etcdctl member remove\"", remoteError{err})
	case !slices.ContainsFunc(authErrors, func(each error) bool { return errors.Is(err, each) }):
		return remoteError{err}
	case p.User != "" && user == "":
		return fmt.Errorf("authentication is enabled, but ETCDCTL_PASSWORD is only sent over verified https to hosts in the configuration: %w; "+
			"use certificates for the other members' client URLs, or give this member a client certificate with the common name root", remoteError{err})
	default:
		return fmt.Errorf("authentication is enabled, and only root can change the membership: %w; set ETCDCTL_USER=root and ETCDCTL_PASSWORD, "+
			"or use a client certificate with the common name root", remoteError{err})
	}
}

const (
	// minVoters is the number of voters that a cluster needs before one of them can be replaced. With three voters,
	// the remaining two form a quorum that survives a brief failure of one of them.
	minVoters = 3
	// quietTime is the required time without any sign of another process with this member's data, unless there is
	// immediate proof that no such process exists.
	quietTime = time.Minute
	// silentTime replaces quietTime if this process owns the member's address and the only evidence of another
	// process is a silent connection. A running member would answer many heartbeats or request votes within ten
	// seconds.
	silentTime = 10 * time.Second
	// maxCheckPause is the longest pause between two checks that still count as continuous.
	maxCheckPause = time.Minute
)

// ErrTooFew reports that the other members have no quorum, so this member cannot be replaced.
var ErrTooFew = errors.New("the other members do not form a quorum, so this member cannot be replaced")

// checkReplacement returns the reason why this member cannot be replaced or added at the moment, or nil if it can.
func (p *Peers) checkReplacement(ctx context.Context, s *Survey, responses []*response, waiting []Status) error {
	if n := len(voters(s.Members)); s.Membership == Started && n < minVoters && !s.Own.IsLearner {
		return fmt.Errorf("the cluster has %d voting members: %w", n, ErrTooFew)
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

// checkURLs returns an error if a member has a peer URL that is not in initial-cluster. A hostname can briefly
// resolve to another cluster, which may have a member with the same name.
func (p *Peers) checkURLs(name string, urls []string) error {
	for _, url := range urls {
		if !slices.Contains(p.listed, url) {
			return fmt.Errorf("the responding cluster has member %s at %s, which is not in initial-cluster, so it may be a different cluster and is not changed; "+
				"if it is the right cluster, add the URL to initial-cluster", shorten(name), shorten(url))
		}
	}
	return nil
}

// checkVersions returns an error if the members run different minor versions, because the membership must not
// change during an upgrade. A member that keeps its data readable by an older etcd reports the older version, so
// checkVersions compares the versions that the members are actually running.
func (p *Peers) checkVersions(ctx context.Context, s *Survey, responses []*response) error {
	for _, r := range responses {
		if r.cluster != s.Cluster {
			continue
		}
		var reported version.Versions
		if _, err := fetch(ctx, p.peer, r.url+"/version", &reported); err != nil {
			return fmt.Errorf("cannot read the version of the member at %s: %w", r.url, err)
		}
		if dataversion.Parse(dataversion.ActualVersion(reported.Server)) != dataversion.Parse(dataversion.Embedded) {
			return fmt.Errorf("the member at %s runs etcd %s, but this member runs %s; upgrade all members to the same version first", r.url, shorten(reported.Server), dataversion.Embedded)
		}
	}
	return nil
}

// checkDataInUse returns an error if another process may be using this member's data. Another process is ruled out if
// the other members have no connection to this member and if all peer URLs of this member lead to this process. If
// one of these conditions cannot be verified, there must be no evidence of another process for a minute, or for ten
// seconds if the only evidence is a silent connection.
func (p *Peers) checkDataInUse(ctx context.Context, s *Survey, waiting []Status) error {
	now := p.now()
	reason := p.checkConnections(ctx, s, waiting)
	if errors.Is(reason, errConnected) {
		p.quietSince = time.Time{}
		return reason
	}
	needed := quietTime
	if err := p.checkOwnURLs(ctx, slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.urls, s.Own.PeerURLs))))); err != nil {
		reason = err
	} else if errors.Is(reason, errSilent) {
		needed = silentTime
	}
	if p.quietSince.IsZero() || now.Sub(p.checkedAt) > maxCheckPause {
		p.quietSince = now
	}
	p.checkedAt = now
	if reason == nil || now.Sub(p.quietSince) >= needed {
		return nil
	}
	return fmt.Errorf("checking for %v whether another process is using this member's data: %w", needed, reason)
}

// errConnected reports that a member exchanges data with another process that has this member's data.
var errConnected = errors.New("connected to another process that has this member's data; stop that process")

// errSilent reports that a member has a connection to this member on which it receives nothing.
var errSilent = errors.New("connected to this member but receives nothing from it")

// checkConnections checks etcd's metrics to see whether the other members are connected to this member. A member
// that has received a snapshot counts each connection twice, so its count may include a connection that has ended.
// Heartbeats or vote requests eventually arrive on a real connection, so a silent connection is only weak evidence
// of another process. A member that is not running etcd has no connections.
func (p *Peers) checkConnections(ctx context.Context, s *Survey, waiting []Status) (unreadable error) {
	silent := error(nil)
	for _, m := range s.Others() {
		if slices.ContainsFunc(waiting, func(status Status) bool { return status.Name == m.Name && status.Volume != Data }) {
			delete(p.received, m.ID)
			continue
		}
		page, err := p.fetchPage(ctx, m, "/metrics")
		if err != nil {
			unreadable = fmt.Errorf("cannot read the connections of %s: %w", nameOf(m), err)
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
			return fmt.Errorf("%s is %w", nameOf(m), errConnected)
		}
		silent = fmt.Errorf("%s is %w", nameOf(m), errSilent)
	}
	return cmp.Or(unreadable, silent)
}

// fetchPage reads a page from one of a member's client URLs.
func (c *connections) fetchPage(ctx context.Context, m Member, path string) (text string, err error) {
	err = errors.New("the member has no client URL")
	for _, url := range m.ClientURLs {
		if _, err = fetch(ctx, c.client, strings.TrimSuffix(url, "/")+path, &text); err == nil {
			return text, nil
		}
	}
	return "", err
}

// metric returns the value of a metric with labels, or "" if it is not on the page.
func metric(page, name string) string {
	_, rest, _ := strings.Cut("\n"+page, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// checkLog returns an error if the volume was rolled back and lacks entries that this member has acknowledged to
// the leader. etcd would panic (tocommit is out of range) or violate raft's guarantees. A new leader does not know
// what the members have acknowledged, so nil does not prove that the log is complete.
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
			return fmt.Errorf("the log on the volume ends at entry %d, but this member has acknowledged entry %d to %s", self.Index, confirmed, nameOf(m))
		}
	}
	return nil
}

const (
	// DowngradeWait is the maximum time that a new member waits for its peers to cancel a downgrade. The peers
	// check once a second, and an election takes a few seconds more.
	DowngradeWait = time.Minute
	// downgradePoll is the interval at which a new member checks whether the downgrade has ended.
	downgradePoll = 500 * time.Millisecond
)

// AwaitVersion waits until the running cluster would admit this member, which has no data, and returns the cluster
// version. The error is final if a peer runs a version of etcd that this member must not join. Any other error
// means that a downgrade was in progress for longer than bound or that ctx is done. AwaitVersion calls report only
// once, with the reason for waiting. If no peer is reachable, AwaitVersion returns a zero version immediately,
// because etcd reports unreachable peers in more detail.
func (p *Peers) AwaitVersion(ctx context.Context, bound time.Duration, report func(reason string)) (dataversion.Version, error) {
	wait, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the downgrade has not finished within %s", bound))
	defer cancel()
	for first := true; p.isDowngrading(ctx); first = false {
		if first {
			report("waiting for a downgrade of the cluster to finish; etcd admits no new members during a downgrade")
		}
		if clock.Sleep(wait, downgradePoll) != nil {
			return dataversion.Version{}, fmt.Errorf("cannot join the cluster while it is being downgraded: %w; "+
				"to cancel the downgrade, run \"etcdctl downgrade cancel\" on one of the members", context.Cause(wait))
		}
	}
	// The highest reported cluster version applies, because a peer that was down may not know it yet.
	var highest, oldest dataversion.Version
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

// isDowngrading reports whether a downgrade is in progress according to the first peer that responds. A single
// response is enough because the responding peer asks its leader.
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
