// Package robustness runs etcd's own robustness suite against etcd-wrapper members. The suite generates traffic,
// replays the members' logs, and checks every response and watch event against them. The suite is in a separate
// module to keep its dependencies out of the program. `make test-robustness` runs the suite.
package robustness

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"etcd-wrapper/cmd/suites/harness"
)

var rounds = flag.Int("rounds", 1, "number of clusters of each kind to test")

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// traffics lists the traffic generators from etcd's suite.
var traffics = []struct {
	name    string
	traffic traffic.Traffic
	profile traffic.Profile
}{
	{"puts", traffic.EtcdPut, traffic.HighTrafficProfile},
	{"puts, deletions and leases", traffic.EtcdPutDeleteLease, traffic.LowTraffic},
	{"Kubernetes", traffic.Kubernetes, traffic.HighTrafficProfile},
	{"slow Kubernetes", traffic.Kubernetes, traffic.LowTraffic},
}

// leastTraffic is the minimum number of requests per second that must succeed before the first failure. It is low
// enough for a slow machine that runs other tests as well.
const leastTraffic = 5

func TestLinearizability_standaloneWithBackups(t *testing.T) {
	for round := range *rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			pods := harness.StandaloneMembers(t, 3)
			store := "--backup-store=file://" + t.TempDir()
			for _, p := range pods {
				p.Flags = append(p.Flags, store, "--backup-interval=200ms")
			}
			c := &cluster{T: t, pods: pods}
			c.link()
			for _, p := range pods {
				p.WriteConfigFile()
			}
			c.withstand(append(slices.Clone(failures), failure{"a lost volume of one member", loseVolume}), round)
		})
	}
}

func TestLinearizability_withSidecar(t *testing.T) {
	for round := range *rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			c := &cluster{T: t, pods: harness.Members(t, 3)}
			c.link()
			c.withstand(failures, round)
		})
	}
}

// withstand starts a cluster, injects two failures while clients are running, and requires that all responses and watch
// events are consistent with the members' logs.
func (c *cluster) withstand(failures []failure, round int) {
	c.Helper()
	for _, p := range c.pods {
		c.runs = append(c.runs, p.Start())
	}
	for _, run := range c.runs {
		run.AwaitReady()
	}
	with := traffics[round%len(traffics)]
	first := failures[round%len(failures)]
	second := failures[rand.IntN(len(failures))]
	c.Logf("traffic: %s; failures: %s, then %s", with.name, first.name, second.name)
	with.profile.MinimalQPS = leastTraffic
	reports := c.simulate(with.traffic, with.profile, func() {
		first.inject(c)
		second.inject(c)
	})
	for _, run := range c.runs {
		run.Shutdown()
	}
	persisted := c.persisted(c.wholeLogs()...)
	if len(c.restored) > 0 {
		reports, persisted = c.joinLogs(reports)
	}
	config := validate.Config{ExpectRevisionUnique: with.traffic.ExpectUniqueRevision()}
	validate.ValidateAndReturnVisualize(c.T, zap.NewNop(), config, reports, persisted, 5*time.Minute)
}

// simulate runs clients that write, read and watch, calls fail while they are running, and returns what they observed.
func (c *cluster) simulate(by traffic.Traffic, profile traffic.Profile, fail func()) []report.ClientReport {
	c.Helper()
	c.began = time.Now()
	began, ids, processes := c.began, identity.NewIDProvider(), &e2e.EtcdProcessCluster{}
	for _, p := range c.pods {
		processes.Procs = append(processes.Procs, process{endpoint: p.Endpoint()})
	}
	var written, watched []report.ClientReport
	caused, last := make(chan report.FailpointInjection, 1), make(chan int64, 1)
	var g errgroup.Group
	g.Go(func() error {
		defer close(caused)
		<-time.After(time.Second) // let clients send requests before the failure
		injection := report.FailpointInjection{Start: time.Since(began), Name: c.Name()}
		fail()
		injection.End = time.Since(began)
		<-time.After(time.Second) // let clients send requests after the failure
		caused <- injection
		return nil
	})
	g.Go(func() error {
		defer close(last)
		written = traffic.SimulateTraffic(c.Context(), c.T, zap.NewNop(), processes, profile, by, caused, began, ids)
		last <- highestRevision(written)
		return nil
	})
	g.Go(func() error {
		watched = client.CollectClusterWatchEvents(c.Context(), c.T, processes, last, client.WatchConfig{}, began, ids)
		return nil
	})
	require.NoError(c, g.Wait())
	return append(written, watched...)
}

// process adapts a member to etcd's suite, which uses only the member's endpoint.
type process struct {
	e2e.EtcdProcess

	endpoint string
}

func (p process) EndpointsGRPC() []string { return []string{p.endpoint} }

func highestRevision(reports []report.ClientReport) (highest int64) {
	for _, r := range reports {
		for _, operation := range r.KeyValue {
			highest = max(highest, operation.Output.(model.MaybeEtcdResponse).Revision)
		}
	}
	return highest
}

// persisted returns the requests of clients from the logs in several data directories. It omits the members' own
// lease requests, which have reserved IDs.
func (c *cluster) persisted(dirs ...string) (ofClients []model.EtcdRequest) {
	c.Helper()
	persisted, err := report.PersistedRequestsDirs(zap.NewNop(), dirs)
	require.NoError(c, err)
	for _, request := range persisted {
		id := int64(0)
		switch request.Type {
		case model.LeaseGrant:
			id = request.LeaseGrant.LeaseID
		case model.LeaseRevoke:
			id = request.LeaseRevoke.LeaseID
		}
		if id>>48 != 0x65e7 {
			ofClients = append(ofClients, request)
		}
	}
	return ofClients
}
