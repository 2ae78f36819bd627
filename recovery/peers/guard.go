package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/member/dataversion"
)

const (
	// minVoters is the number of voting members that a cluster needs so that one can be replaced: the others are a
	// quorum, and remain one if another one fails for a moment.
	minVoters = 3
	// quietTime is the time without a sign of another process with this member's data, if its absence cannot be proved
	// immediately.
	quietTime = time.Minute
	// silentTime applies instead if this process has the member's address, and only the count of a silent connection
	// speaks against it: a running member answers many heartbeats in that time, or asks for votes.
	silentTime = 10 * time.Second
	// maxCheckPause is the longest pause between two checks that count as continuous.
	maxCheckPause = time.Minute
)

// ErrTooFew reports that the cluster has no quorum without this member, so that it cannot even be replaced.
var ErrTooFew = errors.New("the others are no quorum, which it takes to replace this one")

// checkReplacement returns what prevents this member from being replaced or added now.
func (p *Peers) checkReplacement(ctx context.Context, s *Survey, responses []*response, waiting []Status) error {
	if n := len(voters(s.Members)); s.Membership == Started && n < minVoters && !s.Own.IsLearner { // then no other member can be promoted or removed either
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

// checkURLs returns an error if a member has a peer URL that initial-cluster lacks: a name may lead to another cluster
// for a moment, which may have a member of the same name.
func (p *Peers) checkURLs(name string, urls []string) error {
	for _, url := range urls {
		if !slices.Contains(p.listed, url) {
			return fmt.Errorf("the cluster that answers has %s at %s, which initial-cluster does not name, so it may be another cluster, and its members are not changed; "+
				"if it is this one, name that URL in initial-cluster", shorten(name), shorten(url))
		}
	}
	return nil
}

// checkVersions returns an error if the members run different minor versions: a cluster is not changed during an
// upgrade. Members that keep their data readable for an older etcd announce its version and do not count.
func (p *Peers) checkVersions(ctx context.Context, s *Survey, responses []*response) error {
	for _, r := range responses {
		if r.cluster != s.Cluster {
			continue
		}
		var reported version.Versions
		if _, err := p.fetch(ctx, p.peer, r.url+"/version", &reported); err != nil {
			return fmt.Errorf("the version of the member at %s is not known: %w", r.url, err)
		}
		if dataversion.Parse(dataversion.ActualVersion(reported.Server)) != dataversion.Parse(dataversion.Embedded) {
			return fmt.Errorf("the member at %s runs etcd %s, and this one %s: bring all to one version first", r.url, shorten(reported.Server), dataversion.Embedded)
		}
	}
	return nil
}

// checkDataInUse returns an error if this member's data may be in use elsewhere. They are not if the others have no
// connection to it and all they send arrives here: then no process can use the data as long as this one runs. If one of
// the two cannot be known, nothing may speak against it for a minute; for a connection that another member counts and
// that stays silent, for ten seconds.
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
	return fmt.Errorf("whether another process has its data is watched for %v: %w", needed, unsure)
}

var errConnected = errors.New("it is connected to a process that has this member's data; end that")

// errSilent reports a connection over which nothing arrives.
var errSilent = errors.New("it is connected, and nothing arrives from there")

// checkConnections asks the others whether they are connected to this member, which etcd shows in its metrics. A member
// that was sent a snapshot once counts each connection twice, so it may count one that has ended. Over a real connection
// something arrives sooner or later: heartbeats, or requests for votes. A silent one is unsure. Members that have
// reported that they run no etcd have no connections.
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

// fetchPage reads a page from a member's client URLs.
func (p *Peers) fetchPage(ctx context.Context, m Member, path string) (text string, err error) {
	err = errors.New("it has no client URL")
	for _, url := range m.ClientURLs {
		if _, err = p.fetch(ctx, p.client, strings.TrimSuffix(url, "/")+path, &text); err == nil {
			return text, nil
		}
	}
	return "", err
}

// metric returns the value of a metric with its labels; empty if the page lacks it.
func metric(page, name string) string {
	_, rest, _ := strings.Cut("\n"+page, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// checkLog returns an error if the volume lacks what this member has confirmed to the leader: it was rolled back. etcd
// would panic (tocommit is out of range) or violate raft's guarantees. A leader forgets this with its leadership, so
// nil proves nothing.
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
			return fmt.Errorf("their log ends with entry %d, and this member has confirmed entry %d to %s", self.Index, confirmed, nameOf(m))
		}
	}
	return nil
}
