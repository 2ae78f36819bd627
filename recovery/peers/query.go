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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"etcd-wrapper/backup/archive"
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

// openedRevision is the revision of the data that a member was started with, for other members, next to etcd's own
// metrics. etcd shows only what it has applied; without a quorum its log may hold more.
var openedRevision = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_revision",
	Help: "The highest revision that etcd's data could come to when it was opened, by database and log; 0 if that is not known.",
})

// openedCluster names the cluster and generation of the data for other members. etcd computes its cluster ID from the
// configuration, so another cluster may have the same.
var openedCluster = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_cluster",
	Help: "Which cluster of the store etcd's data are of, and which generation; always 1.",
}, []string{"cluster", "generation"})

func init() { prometheus.MustRegister(openedRevision, openedCluster) } //nolint:gochecknoinits // etcd serves the default registry

// PublishOpened publishes the highest revision of the data that etcd is about to open, and the cluster that they belong to.
func PublishOpened(revision int64, identity archive.Identity) {
	openedRevision.Set(float64(revision))
	openedCluster.Reset()
	if identity.Known() {
		openedCluster.WithLabelValues(identity.Cluster, strconv.Itoa(identity.Generation)).Set(1)
	}
}

var openedClusterLine = regexp.MustCompile(`(?m)^etcd_wrapper_opened_cluster\{cluster="([0-9a-f]{1,64})",generation="(\d{1,9})"\} 1$`)

// queryIdentity asks the members that run for their cluster and generation in a store, and for the size of their data.
// The error means that they differ.
func (p *Peers) queryIdentity(ctx context.Context, s *Survey) error {
	for _, m := range s.Others() {
		page, err := p.fetchPage(ctx, m, "/metrics")
		if err != nil {
			continue // another member may know
		}
		s.Size = max(s.Size, maxMetric(page, "etcd_mvcc_db_total_size_in_bytes"))
		labels := openedClusterLine.FindStringSubmatch(page)
		if labels == nil {
			continue
		}
		if s.ID != "" && s.ID != labels[1] {
			return fmt.Errorf("the others are not of one cluster: %s is one of %s, and another one is of %s", nameOf(m), labels[1], s.ID)
		}
		generation, _ := strconv.Atoi(labels[2]) // it has only digits
		s.ID, s.Generation = labels[1], max(s.Generation, generation)
	}
	return nil
}

// queryRevisions asks members of the volume's cluster that run without a quorum for their revisions, which needs no
// vote, and describes them.
func (p *Peers) queryRevisions(ctx context.Context, self Self, s *Survey, responses []*response) (clauses []string) {
	if s.Membership != Claimed || self.ClusterID == 0 {
		return nil
	}
	for _, r := range responses {
		if r.cluster != formatID(self.ClusterID) {
			continue
		}
		revision, err := p.queryRevision(ctx, r)
		if err != nil {
			clauses = append(clauses, fmt.Sprintf("the revision of %s is unknown (%v)", r.name, remoteError{err}))
			continue
		}
		s.Revision = max(s.Revision, revision)
		clauses = append(clauses, fmt.Sprintf("%s has revision %d", r.name, revision))
	}
	return clauses
}

// queryRevision returns the highest revision that a member is known to have.
func (p *Peers) queryRevision(ctx context.Context, r *response) (int64, error) {
	i := slices.IndexFunc(r.members, r.isFrom)
	if i < 0 {
		return 0, errors.New("it is not in its own list of members")
	}
	page, err := p.fetchPage(ctx, r.members[i], "/metrics")
	if err != nil {
		return 0, err
	}
	revision := maxMetric(page, "etcd_debugging_mvcc_current_revision", "etcd_wrapper_opened_revision")
	if revision == 0 {
		return 0, errors.New("its metrics do not show it")
	}
	return revision, nil
}

// maxMetric returns the largest value of several metrics on a page; 0 if it has none.
func maxMetric(page string, names ...string) (largest int64) {
	for _, name := range names {
		if value, err := strconv.ParseFloat(metric(page, name), 64); err == nil {
			largest = max(largest, int64(value))
		}
	}
	return largest
}
