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
	// fewest voting members that a cluster must have so that one of them may be replaced: the others are a quorum, and stay one
	// when one more of them fails to answer for a moment.
	fewest = 3
	// quietTime is how long nobody must have been seen with this member's data where that cannot be known at once.
	quietTime = time.Minute
	// silentTime is the same where the member's address is this process's, and only a count of connections speaks against it over
	// which nothing comes: a live member answers its leader's heartbeats many times in it, and asks for votes if it hears none.
	silentTime = 10 * time.Second
	// lookApart is how far apart two looks may be that count as watching all the time between.
	lookApart = time.Minute
)

// ErrTooFew is of a cluster that cannot do without this member, not even to replace it.
var ErrTooFew = errors.New("the others are no quorum, which it takes to replace this one")

// inTheWay says what keeps this member from being replaced, or added, now.
func (p *Peers) inTheWay(ctx context.Context, c *Survey, by []*answer) error {
	if n := len(voters(c.Members)); c.Listing == Started && n < fewest && !c.Own.IsLearner { // so nobody else can be promoted, or removed, either
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
	return p.busy(ctx, c)
}

// known says that a member has a peer URL that initial-cluster has not: names may lead to another cluster for a moment, which may well have a
// member of this one's name.
func (p *Peers) known(name string, urls []string) error {
	for _, at := range urls {
		if !slices.Contains(p.listed, at) {
			return fmt.Errorf("the cluster that answers has %s at %s, which initial-cluster does not name, so it may be another cluster, and its members are not changed; "+
				"if it is this one, name that URL in initial-cluster", plain(name), plain(at))
		}
	}
	return nil
}

// skew says that members run different minor versions: a cluster is not changed in the middle of an upgrade. Those whose data an
// older etcd has to be able to read present themselves as one, and are none.
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

// busy says that this member's data may be in use somewhere else. It is known not to be so when the others have no
// connection to it and everything that they send to it comes here: then no process can take its place in the cluster as long
// as this one is there. Where one of the two cannot be known, nothing must speak against it for a minute; where nothing comes over
// a connection that another counts, for ten seconds.
func (p *Peers) busy(ctx context.Context, c *Survey) error {
	now := p.now()
	unsure := p.connected(ctx, c)
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

// errSilent is of a connection over which nothing comes.
var errSilent = errors.New("it is connected, and nothing comes from there")

// connected asks the others whether they are connected to this member. etcd tells that in its metrics, but a member that was
// once sent a snapshot counts each connection twice, and so one that ended as one that is there. Over one that is, something
// comes sooner or later: from the leader's questions, or because there is no leader. One over which nothing comes is unsure.
func (p *Peers) connected(ctx context.Context, c *Survey) (unsure error) {
	silent := error(nil)
	for _, m := range c.Others() {
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

// page reads what a member serves its clients.
func (p *Peers) page(ctx context.Context, m Member, path string) (text string, err error) {
	err = errors.New("it has told no client URL")
	for _, at := range m.ClientURLs {
		if _, err = p.fetch(ctx, p.client, strings.TrimSuffix(at, "/")+path, &text); err == nil {
			return text, nil
		}
	}
	return "", err
}

// sample is what a page of metrics has behind a name with its labels; empty if it does not have that.
func sample(page, name string) string {
	_, rest, _ := strings.Cut("\n"+page, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// forgot says that a volume lacks what this member has already confirmed to the leader: it was put back to an older state.
// etcd would take it, and die of it (tocommit is out of range) or break raft's promise. The leader forgets that with its
// leadership, so that nil proves nothing.
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

// confirmedBy is the last entry that a leader knows a member to have.
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
