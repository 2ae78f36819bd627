package peers

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/backup/archive"
)

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
