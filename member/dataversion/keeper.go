package dataversion

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

const (
	// interval is the pause between two checks of the cluster. A check costs a few memory reads and one read of a
	// database page.
	interval = time.Second
	// requestTimeout bounds one request to the cluster.
	requestTimeout = 5 * time.Second
)

// notChecked is the reason of the first state.
const notChecked = "the cluster has not been checked yet"

// server is the part of etcd that a Keeper needs.
type server interface {
	facts() facts
	downgrade(ctx context.Context, target Version) error
	cancelDowngrade(ctx context.Context) error
}

// Keeper keeps the cluster version and the storage version at the wanted version. Its state may be read from any
// goroutine.
type Keeper struct {
	wanted Version
	server server
	log    zerolog.Logger
	state  atomic.Pointer[state.DataVersion]
}

// New returns a keeper for a server that has joined its cluster. It does nothing before Run.
func New(wanted Version, server *etcdserver.EtcdServer, log zerolog.Logger) *Keeper {
	return newKeeper(wanted, embeddedServer{server}, log)
}

func newKeeper(wanted Version, server server, log zerolog.Logger) *Keeper {
	k := &Keeper{wanted: wanted, server: server, log: log}
	k.state.Store(&state.DataVersion{})
	first := k.describe(server.facts(), decision{phase: Waiting, reason: notChecked}) // a member that needs no change is readable from the start
	k.state.Store(&first)
	return k
}

// Run checks the cluster every second until ctx is done, and requests what is needed. Call it once, and wait for its
// return before etcd is closed.
func (k *Keeper) Run(ctx context.Context) {
	k.check(ctx)
	for clock.Sleep(ctx, interval) == nil {
		k.check(ctx)
	}
}

// State returns the latest state.
func (k *Keeper) State() state.DataVersion { return *k.state.Load() }

func (k *Keeper) check(ctx context.Context) {
	f := k.server.facts()
	d := evaluate(k.wanted, f)
	level := zerolog.InfoLevel
	if err := k.request(ctx, d.action); err != nil && ctx.Err() == nil {
		d.phase, d.reason, level = Waiting, "etcd rejected the request: "+err.Error(), zerolog.WarnLevel
	}
	if d.phase == Foreign {
		level = zerolog.WarnLevel
	}
	k.publish(level, k.describe(f, d))
}

func (k *Keeper) describe(f facts, d decision) state.DataVersion {
	return state.DataVersion{
		Wanted: k.wanted.String(), Cluster: f.cluster.String(), Storage: f.storage.String(), Phase: d.phase, Reason: d.reason, Readable: k.readable(f),
	}
}

// readable reports whether an etcd of the wanted version can read the data. A cluster version never exceeds the
// version that a member announces. After a downgrade of the cluster, readable waits for one more check: by then
// etcd has written a snapshot, after which a start no longer replays the higher version.
func (k *Keeper) readable(f facts) bool {
	if f.cluster == (Version{}) {
		return !k.wanted.Less(f.announced)
	}
	return !k.wanted.Less(f.cluster) && !k.wanted.Less(f.storage) && !k.wanted.Less(Parse(k.State().Cluster))
}

func (k *Keeper) request(ctx context.Context, action action) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch action {
	case enable:
		return k.server.downgrade(ctx, k.wanted)
	case cancelDowngrade:
		return k.server.cancelDowngrade(ctx)
	case nothing:
	}
	return nil
}

// publish logs a state that differs from the previous one: a rejected request as a warning, and a state that needs
// no attention at debug level.
func (k *Keeper) publish(level zerolog.Level, current state.DataVersion) {
	before := k.state.Swap(&current)
	if *before == current {
		return
	}
	if level == zerolog.InfoLevel && isIdle(*before) && isIdle(current) {
		level = zerolog.DebugLevel
	}
	k.log.WithLevel(level).Str("wanted", current.Wanted).Str("cluster", current.Cluster).Str("storage", current.Storage).
		Str("phase", current.Phase).Bool("readable", current.Readable).Msg("version of the data: " + current.Reason)
}

// isIdle reports whether the data is readable without any request to the cluster.
func isIdle(s state.DataVersion) bool { return s.Readable && (s.Phase == Waiting || s.Phase == Kept) }

// embeddedServer calls the server object directly, so authentication does not apply.
type embeddedServer struct{ *etcdserver.EtcdServer }

func (s embeddedServer) facts() facts {
	f := facts{announced: Parse(version.Version), leader: s.Leader() == s.MemberID()}
	if v := s.ClusterVersion(); v != nil {
		f.cluster = Version{v.Major, v.Minor}
	}
	if v := s.StorageVersion(); v != nil {
		f.storage = Version{v.Major, v.Minor}
	}
	if info := etcdserver.NewServerVersionAdapter(s.EtcdServer).GetDowngradeInfo(); info != nil && info.Enabled {
		f.downgrade = Parse(info.TargetVersion)
	}
	for _, member := range s.Cluster().Members() {
		if !member.IsStarted() || member.IsLearner {
			f.newcomers = append(f.newcomers, describe(member))
		}
	}
	return f
}

func describe(member *membership.Member) string {
	if !member.IsStarted() {
		return fmt.Sprintf("member %s, which was added and has not started yet", member.ID)
	}
	return fmt.Sprintf("learner %s, which has no vote yet", member.Name)
}

func (s embeddedServer) downgrade(ctx context.Context, target Version) error {
	_, err := s.Downgrade(ctx, &etcdserverpb.DowngradeRequest{
		Action: etcdserverpb.DowngradeRequest_ENABLE, Version: target.String(),
	})
	return err
}

// cancelDowngrade bypasses Downgrade, which discards the error.
func (s embeddedServer) cancelDowngrade(ctx context.Context) error {
	return s.Version().DowngradeCancel(ctx)
}

// facts describe the cluster as this member knows it at one point in time.
type facts struct {
	announced Version // version that this member announces
	cluster   Version // unknown until the cluster has decided on a version
	storage   Version
	downgrade Version // target version of the enabled downgrade, if any
	leader    bool    // this member is the leader
	newcomers []string
}

// action is a request from this member to its cluster.
type action int

const (
	nothing         action = iota
	enable                 // enable the downgrade to the wanted version
	cancelDowngrade        // the downgrade
)

// Phases of the data version. A cluster may go from any phase to any other.
const (
	Waiting   = "waiting"     // waiting for the condition in the reason
	Lowering  = "lowering"    // etcd's downgrade was requested and has not completed
	Holding   = "holding"     // etcd's downgrade keeps the version at the wanted one
	LettingGo = "letting go"  // the downgrade is canceled so that a member can join
	Rising    = "rising"      // upgrading to a higher wanted version
	Kept      = "kept"        // at the wanted version, with nothing left to do
	Foreign   = "not changed" // another user has requested a different version from etcd
)

// decision is the request to make, and the state to publish.
type decision struct {
	action action
	phase  string
	reason string
}

// evaluate compares the facts with the wanted version. Every member cancels a downgrade for a new member, because
// the leader may be a plain etcd, which would not do so. All other actions are up to the leader, so that members
// that want different versions do not undo each other's requests.
func evaluate(wanted Version, f facts) decision {
	downgrading := f.downgrade != (Version{})
	switch {
	case f.cluster == (Version{}):
		return decision{nothing, Waiting, "the cluster has not decided on its version yet"}
	case downgrading && len(f.newcomers) > 0:
		return decision{cancelDowngrade, LettingGo, "etcd admits no new member during a downgrade, and " + namesOf(f.newcomers)}
	case downgrading && f.downgrade != Of3_5:
		return decision{nothing, Foreign, fmt.Sprintf("a user has requested a downgrade to %s", f.downgrade)}
	case wanted == Of3_5:
		return lower(f, downgrading)
	default:
		return raise(wanted, f, downgrading)
	}
}

func lower(f facts, downgrading bool) decision {
	switch {
	case !Of3_5.Less(f.cluster) && Of3_5.Less(f.storage):
		return decision{nothing, Lowering, "the cluster is at 3.5, and etcd is about to convert this member's storage"}
	case !Of3_5.Less(f.cluster) && downgrading:
		return decision{nothing, Holding, "a downgrade holds the cluster, until every member has been started again"}
	case !Of3_5.Less(f.cluster):
		return decision{nothing, Kept, "the cluster runs at " + f.cluster.String()}
	case downgrading:
		return decision{nothing, Lowering, "the downgrade to 3.5 was requested; etcd performs it within seconds"}
	case len(f.newcomers) > 0:
		return decision{nothing, Waiting, "the downgrade to 3.5 is not requested yet: " + namesOf(f.newcomers)}
	case !f.leader:
		return decision{nothing, Waiting, "the leader has to request the downgrade to 3.5"}
	default:
		return decision{enable, Lowering, "the cluster runs at " + f.cluster.String() + ", and 3.5 has to be able to read its data"}
	}
}

func raise(wanted Version, f facts, downgrading bool) decision {
	switch {
	case downgrading && f.leader:
		return decision{cancelDowngrade, Rising, "a downgrade holds the cluster, and " + wanted.String() + " is wanted"}
	case downgrading:
		return decision{nothing, Waiting, "the leader has to end the downgrade"}
	case f.cluster.Less(wanted):
		return decision{nothing, Waiting, "the cluster rises to " + wanted.String() + " when every member announces that"}
	default:
		return decision{nothing, Kept, "the cluster runs at " + f.cluster.String()}
	}
}

func namesOf(newcomers []string) string {
	return "this is joining: " + strings.Join(newcomers, ", ")
}
