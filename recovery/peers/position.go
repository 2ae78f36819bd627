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

// opened is the revision of the data that a member was started with, for other members, next to etcd's own metrics.
// etcd shows only what it has applied; without a quorum its log may hold more.
var opened = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_revision",
	Help: "The highest revision that etcd's data could come to when it was opened, by database and log; 0 if that is not known.",
})

// identified names the cluster and generation of the data for other members. etcd computes its cluster ID from the
// configuration, so another cluster may have the same.
var identified = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_cluster",
	Help: "Which cluster of the store etcd's data are of, and which generation; always 1.",
}, []string{"cluster", "generation"})

func init() { prometheus.MustRegister(opened, identified) } //nolint:gochecknoinits // etcd serves the default registry

// Opens publishes how far the data reach that etcd is about to open, and to which cluster they belong.
func Opens(revision int64, of archive.Identity) {
	opened.Set(float64(revision))
	identified.Reset()
	if of.Known() {
		identified.WithLabelValues(of.Cluster, strconv.Itoa(of.Generation)).Set(1)
	}
}

var openedCluster = regexp.MustCompile(`(?m)^etcd_wrapper_opened_cluster\{cluster="([0-9a-f]{1,64})",generation="(\d{1,9})"\} 1$`)

// identify asks the members that run for their cluster and generation in a store, and for the size of their data. The
// error says that they differ.
func (p *Peers) identify(ctx context.Context, c *Survey) error {
	for _, m := range c.Others() {
		page, err := p.page(ctx, m, "/metrics")
		if err != nil {
			continue // another member may know
		}
		c.Size = max(c.Size, number(page, "etcd_mvcc_db_total_size_in_bytes"))
		told := openedCluster.FindStringSubmatch(page)
		if told == nil {
			continue
		}
		if c.ID != "" && c.ID != told[1] {
			return fmt.Errorf("the others are not of one cluster: %s is one of %s, and another one is of %s", called(m), told[1], c.ID)
		}
		generation, _ := strconv.Atoi(told[2]) // it has only digits
		c.ID, c.Generation = told[1], max(c.Generation, generation)
	}
	return nil
}

// positions asks members of the volume's cluster that run without a quorum how far they have come, which needs no
// vote. The error describes them.
func (p *Peers) positions(ctx context.Context, self Self, c *Survey, answers []*answer) error {
	if c.Listing != Claimed || self.ClusterID == 0 {
		return nil
	}
	var told []string
	for _, a := range answers {
		if a.cluster != strconv.FormatUint(self.ClusterID, 16) {
			continue
		}
		reach, err := p.reach(ctx, a)
		if err != nil {
			told = append(told, fmt.Sprintf("%s does not tell how far it is (%v)", a.name, said{err}))
			continue
		}
		c.Reach = max(c.Reach, reach)
		told = append(told, fmt.Sprintf("%s has come to revision %d", a.name, reach))
	}
	return sentence(told)
}

// number returns the largest value of several metrics on a page; 0 if it has none.
func number(page string, names ...string) (most int64) {
	for _, name := range names {
		if value, err := strconv.ParseFloat(sample(page, name), 64); err == nil {
			most = max(most, int64(value))
		}
	}
	return most
}

// reach returns the highest revision that a member is known to have.
func (p *Peers) reach(ctx context.Context, a *answer) (int64, error) {
	at := slices.IndexFunc(a.members, a.is)
	if at < 0 {
		return 0, errors.New("it is not in its own list")
	}
	page, err := p.page(ctx, a.members[at], "/metrics")
	if err != nil {
		return 0, err
	}
	reached := number(page, "etcd_debugging_mvcc_current_revision", "etcd_wrapper_opened_revision")
	if reached == 0 {
		return 0, errors.New("its metrics do not say it")
	}
	return reached, nil
}
