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
	// interval is the interval between checks of the cluster.
	interval = time.Second
	// requestTimeout is the timeout for each request to the cluster.
	requestTimeout = 5 * time.Second
)

// notChecked is the reason in the initial state, before the first check.
const notChecked = "the cluster has not been checked yet"

// server is the part of etcd that a Keeper uses.
type server interface {
	facts() facts
	downgrade(ctx context.Context, target Version) error
	cancelDowngrade(ctx context.Context) error
}

// Keeper keeps the cluster version and the storage version at the wanted version. State is safe for concurrent use.
type Keeper struct {
	wanted Version
	server server
	log    zerolog.Logger
	state  atomic.Pointer[state.DataVersion]
}

// New returns a Keeper for a server that has joined its cluster. The Keeper does nothing until Run is called.
func New(wanted Version, server *etcdserver.EtcdServer, log zerolog.Logger) *Keeper {
	return newKeeper(wanted, embeddedServer{server}, log)
}

func newKeeper(wanted Version, server server, log zerolog.Logger) *Keeper {
	k := &Keeper{wanted: wanted, server: server, log: log}
	k.state.Store(&state.DataVersion{})
	// The initial status already reports whether the data is readable.
	first := k.describe(server.facts(), decision{phase: Waiting, reason: notChecked})
	k.state.Store(&first)
	return k
}

// Run checks the cluster every second until ctx is done, and requests or cancels downgrades. Run must be called only
// once and must return before etcd is closed.
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
		d.phase, d.reason, level = Waiting, "the request to etcd failed: "+err.Error(), zerolog.WarnLevel
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

// readable reports whether the wanted etcd version can read the data. After a downgrade, readable does not return
// true until the second check. By then, etcd has written a snapshot, so it no longer replays the entry with the
// higher version at startup.
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

// publish stores the state, and logs it if it has changed. Changes that need no attention are logged at debug level.
func (k *Keeper) publish(level zerolog.Level, current state.DataVersion) {
	before := k.state.Swap(&current)
	if *before == current {
		return
	}
	if level == zerolog.InfoLevel && isIdle(*before) && isIdle(current) {
		level = zerolog.DebugLevel
	}
	k.log.WithLevel(level).Str("wanted", current.Wanted).Str("cluster", current.Cluster).Str("storage", current.Storage).
		Str("phase", current.Phase).Bool("readable", current.Readable).Msg("data version: " + current.Reason)
}

// isIdle reports whether the data is readable and there is nothing to request from the cluster.
func isIdle(s state.DataVersion) bool { return s.Readable && (s.Phase == Waiting || s.Phase == Kept) }

// embeddedServer calls the server object directly, which requires no authentication.
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
		return fmt.Sprintf("member %s (not started)", member.ID)
	}
	return fmt.Sprintf("%s (learner)", member.Name)
}

func (s embeddedServer) downgrade(ctx context.Context, target Version) error {
	_, err := s.Downgrade(ctx, &etcdserverpb.DowngradeRequest{
		Action: etcdserverpb.DowngradeRequest_ENABLE, Version: target.String(),
	})
	return err
}

// cancelDowngrade bypasses EtcdServer.Downgrade, which discards the error of a cancellation.
func (s embeddedServer) cancelDowngrade(ctx context.Context) error {
	return s.Version().DowngradeCancel(ctx)
}

// facts is a snapshot of this member's view of the cluster.
type facts struct {
	announced Version  // version that this member announces
	cluster   Version  // zero if the cluster has no version yet
	storage   Version  // version of this member's database; zero if unknown
	downgrade Version  // target of the enabled downgrade; zero if none is enabled
	leader    bool     // this member is the leader
	newcomers []string // descriptions of the learners and of the members that have not started yet
}

// action is a request that this member sends to its cluster.
type action int

const (
	nothing         action = iota
	enable                 // enable a downgrade to the wanted version
	cancelDowngrade        // cancel the downgrade
)

// Phases of the data version. Any phase may follow any other.
const (
	Waiting   = "waiting"     // waiting for what the reason describes
	Lowering  = "lowering"    // the requested downgrade has not completed yet
	Holding   = "holding"     // the enabled downgrade keeps the cluster at the wanted version
	LettingGo = "letting go"  // the downgrade is being canceled so that a member can join
	Rising    = "rising"      // the cluster is being upgraded to the wanted version
	Kept      = "kept"        // the cluster is at the wanted version
	Foreign   = "not changed" // a user has requested a downgrade to a different version
)

// decision is the request to make and the state to publish.
type decision struct {
	action action
	phase  string
	reason string
}

// evaluate decides how to reach the wanted version. Any member may cancel a downgrade to let a new member join,
// because the leader may run plain etcd, which would not do so. All other actions are left to the leader, so that
// members with different wanted versions do not undo each other's requests.
func evaluate(wanted Version, f facts) decision {
	downgrading := f.downgrade != (Version{})
	switch {
	case f.cluster == (Version{}):
		return decision{nothing, Waiting, "the cluster version has not been determined yet"}
	case downgrading && len(f.newcomers) > 0:
		return decision{cancelDowngrade, LettingGo, "etcd admits no new members during a downgrade; " + stillJoining(f.newcomers)}
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
		return decision{nothing, Lowering, "the cluster is at version 3.5; etcd converts this member's storage next"}
	case !Of3_5.Less(f.cluster) && downgrading:
		return decision{nothing, Holding, "the downgrade remains enabled until every member has been restarted"}
	case !Of3_5.Less(f.cluster):
		return decision{nothing, Kept, "the cluster is at version " + f.cluster.String()}
	case downgrading:
		return decision{nothing, Lowering, "the downgrade to 3.5 was requested and should complete within seconds"}
	case len(f.newcomers) > 0:
		return decision{nothing, Waiting, "the downgrade to 3.5 cannot be requested yet; " + stillJoining(f.newcomers)}
	case !f.leader:
		return decision{nothing, Waiting, "waiting for the leader to request the downgrade to 3.5"}
	default:
		return decision{enable, Lowering, "the cluster is at version " + f.cluster.String() + ", but etcd 3.5 must be able to read its data"}
	}
}

func raise(wanted Version, f facts, downgrading bool) decision {
	switch {
	case downgrading && f.leader:
		return decision{cancelDowngrade, Rising, "canceling the downgrade because version " + wanted.String() + " is wanted"}
	case downgrading:
		return decision{nothing, Waiting, "waiting for the leader to cancel the downgrade"}
	case f.cluster.Less(wanted):
		return decision{nothing, Waiting, "the cluster switches to version " + wanted.String() + " once every member announces it"}
	default:
		return decision{nothing, Kept, "the cluster is at version " + f.cluster.String()}
	}
}

func stillJoining(newcomers []string) string {
	return "still joining: " + strings.Join(newcomers, ", ")
}
