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

// opened is what a member that runs tells others of the data that it was started with, where etcd serves its own metrics: etcd tells
// no more than what it has applied, and a log may hold more that is not known to be committed while there is no quorum.
var opened = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_revision",
	Help: "The highest revision that etcd's data could come to when it was opened, by database and log; 0 if that is not known.",
})

// identified is whose the data are, for other members: etcd's own cluster id is computed of the configuration, so that another cluster may
// have the same.
var identified = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_cluster",
	Help: "Which cluster of the store etcd's data are of, and which generation; always 1.",
}, []string{"cluster", "generation"})

func init() { prometheus.MustRegister(opened, identified) } //nolint:gochecknoinits // etcd serves the default registry

// Opens notes how far the data go that etcd is about to open, and whose they are.
func Opens(revision int64, of archive.Identity) {
	opened.Set(float64(revision))
	identified.Reset()
	if of.Known() {
		identified.WithLabelValues(of.Cluster, strconv.Itoa(of.Generation)).Set(1)
	}
}

var openedCluster = regexp.MustCompile(`(?m)^etcd_wrapper_opened_cluster\{cluster="([0-9a-f]{1,64})",generation="(\d{1,9})"\} 1$`)

// identify asks those that run which cluster of a store they are of, and how much they have. The error says that they are of several.
func (p *Peers) identify(ctx context.Context, c *Survey) error {
	for _, m := range c.Others() {
		page, err := p.page(ctx, m, "/metrics")
		if err != nil {
			continue // another one tells, or nobody
		}
		c.Size = max(c.Size, number(page, "etcd_mvcc_db_total_size_in_bytes"))
		told := openedCluster.FindStringSubmatch(page)
		if told == nil {
			continue
		}
		if c.ID != "" && c.ID != told[1] {
			return fmt.Errorf("the others are not of one cluster: %s is one of %s, and another one is of %s", called(m), told[1], c.ID)
		}
		generation, _ := strconv.Atoi(told[2]) // which has digits only
		c.ID, c.Generation = told[1], max(c.Generation, generation)
	}
	return nil
}

// positions asks how far those have come that run without a quorum, of the cluster of this member's volume. That needs no vote. The
// words are for people: who runs, and how far that one is.
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

// number is the largest one that a page of metrics has behind several names; 0 if it has none.
func number(page string, names ...string) (most int64) {
	for _, name := range names {
		if value, err := strconv.ParseFloat(sample(page, name), 64); err == nil {
			most = max(most, int64(value))
		}
	}
	return most
}

// reach is the highest revision that a member is known to have.
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
