package peers

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// opened is what a member that runs tells others of the data that it was started with, where etcd serves its own metrics: etcd tells
// no more than what it has applied, and a log may hold more that is not known to be committed while there is no quorum.
var opened = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "etcd_wrapper_opened_revision",
	Help: "The highest revision that etcd's data could come to when it was opened, by database and log; 0 if that is not known.",
})

func init() { prometheus.MustRegister(opened) } //nolint:gochecknoinits // etcd serves the default registry

// Opens notes how far the data go that etcd is about to open.
func Opens(revision int64) { opened.Set(float64(revision)) }

// positions asks how far those have come that run without a quorum, of the cluster of this member's volume. That needs no vote. The
// words are for people: who runs, and how far that one is.
func (p *Peers) positions(ctx context.Context, self Self, c *Census, answers []*answer) error {
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
			told = append(told, fmt.Sprintf("%s does not tell how far it is (%v)", a.name, quoted(err)))
			continue
		}
		c.Reach = max(c.Reach, reach)
		told = append(told, fmt.Sprintf("%s has come to revision %d", a.name, reach))
	}
	if told == nil {
		return nil
	}
	return errors.New(strings.Join(told, "; "))
}

var revision = regexp.MustCompile(`(?m)^(?:etcd_debugging_mvcc_current_revision|etcd_wrapper_opened_revision) (\S+)$`)

// reach is the highest revision that a member is known to have.
func (p *Peers) reach(ctx context.Context, a *answer) (highest int64, err error) {
	err = errors.New("it is not in its own list")
	for _, m := range a.members {
		if !a.is(m) {
			continue
		}
		var page string
		if page, err = p.page(ctx, m, "/metrics"); err != nil {
			return 0, err
		}
		for _, found := range revision.FindAllStringSubmatch(page, -1) {
			if value, err := strconv.ParseFloat(found[1], 64); err == nil {
				highest = max(highest, int64(value))
			}
		}
		if highest == 0 {
			return 0, errors.New("its metrics do not say it")
		}
		return highest, nil
	}
	return 0, err
}
