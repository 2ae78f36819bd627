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
	// fewest is the number of voting members that a cluster needs so that one can be replaced: the others are a
	// quorum, and remain one if another one fails for a moment.
	fewest = 3
	// quietTime is how long no process may have been seen with this member's data if that cannot be known
	// immediately.
	quietTime = time.Minute
	// silentTime applies instead if this process has the member's address, and only the count of a silent connection
	// speaks against it: a running member answers many heartbeats in that time, or asks for votes.
	silentTime = 10 * time.Second
	// lookApart is the longest pause between two checks that count as continuous.
	lookApart = time.Minute
)

// ErrTooFew reports that the cluster has no quorum without this member, so that it cannot even be replaced.
var ErrTooFew = errors.New("the others are no quorum, which it takes to replace this one")

// inTheWay returns what prevents this member from being replaced or added now.
func (p *Peers) inTheWay(ctx context.Context, c *Survey, by []*answer, calls []Call) error {
	if n := len(voters(c.Members)); c.Listing == Started && n < fewest && !c.Own.IsLearner { // then no other member can be promoted or removed either
		return fmt.Errorf("of %d voting members %w", n, ErrTooFew)
	}
	if err := p.unfinished(c); err != nil {
		return err
	}
	for _, m := range c.Members {
		if err := p.known(called(m), m.PeerURLs); err != nil {
			return err
		}
	}
	if c.Listing == Unlisted {
		return nil
	}
	if err := p.skew(ctx, by); err != nil {
		return err
	}
	return p.busy(ctx, c, calls)
}

// known returns an error if a member has a peer URL that initial-cluster lacks: a name may lead to another cluster
// for a moment, which may have a member of the same name.
func (p *Peers) known(name string, urls []string) error {
	for _, at := range urls {
		if !slices.Contains(p.listed, at) {
			return fmt.Errorf("the cluster that answers has %s at %s, which initial-cluster does not name, so it may be another cluster, and its members are not changed; "+
				"if it is this one, name that URL in initial-cluster", plain(name), plain(at))
		}
	}
	return nil
}

// skew returns an error if the members run different minor versions: a cluster is not changed during an upgrade.
// Members that keep their data readable for an older etcd announce its version and do not count.
func (p *Peers) skew(ctx context.Context, by []*answer) error {
	for _, a := range by {
		var runs version.Versions
		if _, err := p.fetch(ctx, p.peer, a.url+"/version", &runs); err != nil {
			return fmt.Errorf("the version of the member at %s is not known: %w", a.url, err)
		}
		if dataversion.Parse(dataversion.Truth(runs.Server)) != dataversion.Parse(dataversion.Embedded) {
			return fmt.Errorf("the member at %s runs etcd %s, and this one %s: bring all to one version first", a.url, plain(runs.Server), dataversion.Embedded)
		}
	}
	return nil
}

// busy returns an error if this member's data may be in use elsewhere. They are not if the others have no connection
// to it and all they send arrives here: then no process can use the data as long as this one runs. If one of the two
// cannot be known, nothing may speak against it for a minute; for a connection that another member counts and that
// stays silent, for ten seconds.
func (p *Peers) busy(ctx context.Context, c *Survey, calls []Call) error {
	now := p.now()
	unsure := p.connected(ctx, c, calls)
	if errors.Is(unsure, errConnected) {
		p.quietSince = time.Time{}
		return unsure
	}
	needed := quietTime
	if elsewhere := p.answersHere(ctx, slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.urls, c.Own.PeerURLs))))); elsewhere != nil {
		unsure = elsewhere
	} else if errors.Is(unsure, errSilent) {
		needed = silentTime
	}
	if p.quietSince.IsZero() || now.Sub(p.looked) > lookApart {
		p.quietSince = now
	}
	p.looked = now
	if unsure == nil || now.Sub(p.quietSince) >= needed {
		return nil
	}
	return fmt.Errorf("whether another process has its data is watched for %v: %w", needed, unsure)
}

var errConnected = errors.New("it is connected to a process that has this member's data; end that")

// errSilent reports a connection over which nothing arrives.
var errSilent = errors.New("it is connected, and nothing comes from there")

// connected asks the others whether they are connected to this member, which etcd shows in its metrics. A member that
// was sent a snapshot once counts each connection twice, so it may count one that has ended. Over a real connection
// something arrives sooner or later: heartbeats, or requests for votes. A silent one is unsure. Members that have
// reported that they run no etcd have no connections.
func (p *Peers) connected(ctx context.Context, c *Survey, calls []Call) (unsure error) {
	silent := error(nil)
	for _, m := range c.Others() {
		if slices.ContainsFunc(calls, func(call Call) bool { return call.Name == m.Name && call.Holds != Data }) {
			delete(p.heard, m.ID)
			continue
		}
		page, err := p.page(ctx, m, "/metrics")
		if err != nil {
			unsure = fmt.Errorf("%s does not tell whom it is connected to: %w", called(m), err)
			continue
		}
		count := sample(page, fmt.Sprintf("etcd_network_active_peers{Local=%q,Remote=%q}", m.ID, c.Own.ID))
		if count == "" || count == "0" {
			delete(p.heard, m.ID)
			continue
		}
		heard := sample(page, fmt.Sprintf("etcd_network_peer_received_bytes_total{From=%q}", c.Own.ID))
		if before, known := p.heard[m.ID]; !known || before != heard {
			p.heard[m.ID] = heard
			return fmt.Errorf("%s says that %w", called(m), errConnected)
		}
		silent = fmt.Errorf("%s says that %w", called(m), errSilent)
	}
	return cmp.Or(unsure, silent)
}

// page reads a page from a member's client URLs.
func (p *Peers) page(ctx context.Context, m Member, path string) (text string, err error) {
	err = errors.New("it has told no client URL")
	for _, at := range m.ClientURLs {
		if _, err = p.fetch(ctx, p.client, strings.TrimSuffix(at, "/")+path, &text); err == nil {
			return text, nil
		}
	}
	return "", err
}

// sample returns the value of a metric with its labels; empty if the page lacks it.
func sample(page, name string) string {
	_, rest, _ := strings.Cut("\n"+page, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// forgot returns an error if the volume lacks what this member has confirmed to the leader: it was rolled back. etcd
// would panic (tocommit is out of range) or violate raft's guarantees. A leader forgets this with its leadership, so
// nil proves nothing.
func (p *Peers) forgot(ctx context.Context, self Self, c *Survey) error {
	if c.Listing != Started || self.Index == 0 {
		return nil
	}
	for _, m := range c.Others() {
		page, err := p.page(ctx, m, "/debug/vars")
		if err != nil {
			continue
		}
		if confirmed := confirmedBy(page, c.Own.ID.String()); confirmed > self.Index {
			return fmt.Errorf("their log ends with entry %d, and this member has confirmed entry %d to %s", self.Index, confirmed, called(m))
		}
	}
	return nil
}

// confirmedBy returns the last entry that a leader knows a member to have.
func confirmedBy(page, member string) uint64 {
	var told struct {
		Raft struct {
			Progress map[string]struct {
				Match uint64 `json:"match"`
			} `json:"progress"`
		} `json:"raft.status"`
	}
	if err := json.Unmarshal([]byte(page), &told); err != nil {
		return 0
	}
	return told.Raft.Progress[member].Match
}
