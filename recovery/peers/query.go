package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"etcd-wrapper/member/dataversion"
)

// Query asks every other member, and answers their requests from the first time on until Close. It returns within some
// seconds, or when ctx ends.
func (p *Peers) Query(ctx context.Context, self Self) Survey {
	p.reloadCAs()
	var notListening []string
	if err := p.publish(self); err != nil {
		notListening = []string{err.Error()}
	}
	responses, waiting, missing := p.queryAll(ctx, p.others)
	others, _, _ := p.queryAll(ctx, p.onlyListed(responses)) // a quorum of the configured ones may suffice
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

// addCounts adds the numbers of members to a survey.
func (p *Peers) addCounts(s *Survey, self Self, responses []*response, waiting []Status) {
	for _, r := range responses {
		if r.cluster == strconv.FormatUint(self.ClusterID, 16) {
			s.Running, s.Voters = s.Running+1, max(s.Voters, len(voters(r.members)))
		}
	}
	without, with := 0, 0 // members with and without data that could form a quorum of this cluster
	for _, status := range waiting {
		if status.Volume == Older {
			s.Older++
		}
		if usable := status.Volume != Nothing && status.Volume != Ruins; usable && (status.Cluster == "" || status.Cluster == formatID(self.ClusterID)) {
			with++
		} else {
			without++
		}
	}
	quorum := (1+len(p.others))/2 + 1
	s.NoQuorumElsewhere = without > 0 && with == 0 && len(p.others)-without < quorum
}

// formatID formats an ID as etcd does; 0 is empty.
func formatID(id uint64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(id, 16)
}

// onlyListed returns the members that a response names and the configuration does not.
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

// queryAll asks members in parallel for the members of their cluster, or for their status if they run no etcd.
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
				missing = append(missing, fmt.Sprintf("%s does not answer (%v)", name, remoteError{err}))
			}
		})
	}
	requests.Wait()
	slices.SortFunc(responses, func(a, b *response) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(waiting, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(missing)
	return responses, waiting, missing
}

// listMembers returns the first response from one of a member's URLs.
func (p *Peers) listMembers(ctx context.Context, name string, urls []string) (*response, error) {
	err := errors.New("it has no URL")
	for _, url := range urls {
		r := &response{name: name, url: url}
		if r.cluster, err = p.fetch(ctx, p.peer, url+"/members", &r.members); err != nil {
			continue
		}
		id, noID := types.IDFromString(r.cluster)
		r.cluster = id.String()
		if err = validate(r.members); err == nil && noID == nil {
			return r, nil
		}
		err = fmt.Errorf("the response from %s is not used: %w", url, cmp.Or(err, errors.New("it names no cluster")))
	}
	return nil, err
}

// readStatus asks a member that runs no etcd for its status.
func (p *Peers) readStatus(ctx context.Context, name string, urls []string, status *Status) bool {
	return slices.ContainsFunc(urls, func(url string) bool {
		_, err := p.fetch(ctx, p.peer, url+statusPath, status)
		return err == nil && status.Name == name
	})
}

// fetch reads a document, and the ID of the cluster that it came from.
func (p *Peers) fetch(ctx context.Context, client *http.Client, url string, document any) (cluster string, err error) {
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
		return "", fmt.Errorf("%s: the response cannot be read", url)
	}
	return response.Header.Get("X-Etcd-Cluster-ID"), nil
}

const (
	// DowngradeWait bounds the wait of a new member until its peers have canceled a downgrade: they check once a second,
	// and an election takes seconds more.
	DowngradeWait = time.Minute
	// downgradePoll is the pause between two questions whether a downgrade has ended.
	downgradePoll = 500 * time.Millisecond
)

// AwaitVersion waits until etcd would admit this member, which has no data, to the running cluster that it joins, and
// returns the cluster's version. The error is a *dataversion.UpgradeError if a peer runs an etcd that this one must not
// join; otherwise the peers have held a downgrade for longer than bound, or ctx has ended. report is called once, with the
// reason for a wait. If no peer can be reached AwaitVersion returns at once with a zero version: etcd finds that out as
// well, and explains it better.
func (p *Peers) AwaitVersion(ctx context.Context, bound time.Duration, report func(reason string)) (dataversion.Version, error) {
	deadline := time.Now().Add(bound)
	for first := true; p.isDowngrading(ctx); first = false {
		if first {
			report("waits until its peers end a downgrade, during which etcd admits no new member")
		}
		if time.Now().After(deadline) {
			return dataversion.Version{}, fmt.Errorf("cannot join: for %s the cluster has been held at an older version by a downgrade, during "+
				"which etcd admits no new member; end it with `etcdctl downgrade cancel` on one of its members", bound)
		}
		select {
		case <-ctx.Done():
			return dataversion.Version{}, fmt.Errorf("gave up while peers hold a downgrade: %w", ctx.Err())
		case <-time.After(downgradePoll):
		}
	}
	var highest, oldest dataversion.Version // a peer that was down may not know the cluster's version
	for _, url := range p.otherURLs() {
		var reported version.Versions
		if _, err := p.fetch(ctx, p.peer, url+"/version", &reported); err != nil {
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

// isDowngrading reports whether a downgrade is enabled, by the first peer that answers. That peer asks its leader, so one
// is enough.
func (p *Peers) isDowngrading(ctx context.Context) bool {
	for _, url := range p.otherURLs() {
		var text string
		if _, err := p.fetch(ctx, p.peer, url+etcdserver.DowngradeEnabledPath, &text); err != nil {
			continue
		}
		if enabled, err := strconv.ParseBool(text); err == nil {
			return enabled
		}
	}
	return false
}
