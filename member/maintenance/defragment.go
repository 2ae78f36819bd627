package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc/status"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

// request describes a requested defragmentation.
type request struct {
	origin   string
	schedule schedule     // coordinates turns with other members; nil if no coordination is needed
	do       func() error // defragments the database; nil means cluster.Defragment
}

// failure is the error from a defragmentation that was started. Its result has already been recorded.
type failure struct{ error }

// defragment defragments the database if there are no readers of the whole database and no other member is being
// defragmented. Unless the error is a failure, the defragmentation was not started, and the error describes what to
// wait for.
func (k *Maintainer) defragment(ctx context.Context, f facts, r request) error {
	cluster := k.serving.Load().cluster
	open, err := k.options.Gate.Close("a defragmentation of member " + k.options.Name)
	if err != nil {
		return err
	}
	if r.schedule != nil {
		if err := r.schedule.acquire(ctx, f.members); err != nil {
			open()
			return err
		}
	}
	k.enter(HandingOff, "redirecting clients to other members", f)
	defer func() { k.enter(Idle, "", f) }() // runs last, because another defragmentation may start as soon as the phase is Idle
	defer open()
	if r.schedule != nil {
		defer r.schedule.release(ctx)
		defer r.schedule.renew(ctx)()
	}
	if !f.isSingle() {
		defer k.redirecting.begin("the database is being defragmented")()
	}
	if err := k.handOff(ctx, cluster, f, r); err != nil {
		return err
	}
	if last := cluster.facts(); last.sending {
		return errors.New(last.readReason())
	}
	return k.runDefragmentation(ctx, cluster, f, r)
}

// handOff transfers leadership, or else gives active requests time to finish. A defragmentation requested by a client
// does not transfer leadership, because the client may have chosen the leader on purpose.
func (k *Maintainer) handOff(ctx context.Context, cluster cluster, f facts, r request) error {
	switch {
	case f.isSingle():
		return nil
	case f.leader != f.self || r.origin == ByClient:
		return clock.Sleep(ctx, drainTime)
	}
	to, ok := cluster.successor()
	if !ok {
		return errors.New("this member is the leader, and no other member is up to date enough to take over")
	}
	k.enter(HandingOff, "transferring leadership to "+to.name, f)
	if r.schedule != nil {
		if err := r.schedule.proposeTransfer(ctx); err != nil {
			return err
		}
	}
	if err := cluster.handOver(ctx, to); err != nil {
		return err
	}
	k.options.Log.Info().Str("to", to.name).Msg("transferred leadership before the defragmentation")
	return nil
}

// runDefragmentation defragments the database, which blocks all reads and writes.
func (k *Maintainer) runDefragmentation(ctx context.Context, cluster cluster, f facts, r request) error {
	do := r.do
	if do == nil {
		do = cluster.Defragment
	}
	k.enter(Running, "copying the data in use to a new database file", f)
	k.options.Log.Info().Int64("size", f.size).Int64("in_use", f.inUse).Str("origin", r.origin).
		Stringer("expected", k.estimator.expected(f.inUse).Round(time.Millisecond)).Msg("defragmenting the database")
	began := time.Now()
	err := do()
	took := time.Since(began)
	after := cluster.facts()
	outcome := state.Defragmentation{At: time.Now(), Seconds: took.Seconds(), Origin: r.origin, BytesBefore: f.size, BytesAfter: after.size}
	if err != nil {
		outcome.Error = err.Error()
		k.record(outcome)
		return failure{err}
	}
	k.estimator.record(f.inUse, took)
	k.record(outcome)
	k.enter(CatchingUp, "applying entries that were committed during the defragmentation", after)
	within, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	if err := cluster.waitApplied(within); err != nil {
		k.options.Log.Warn().Err(err).Msg("the member has not caught up after the defragmentation; no longer redirecting clients")
	}
	return nil
}

// record stores and logs the result of a defragmentation.
func (k *Maintainer) record(o state.Defragmentation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.LastDefragmentation = &o
	if o.Error != "" {
		k.state.Failed++
		k.options.Log.Warn().Str("origin", o.Origin).Str("error", o.Error).Msg("cannot defragment the database")
		return
	}
	k.state.Completed++
	k.state.FreedBytes += max(0, o.BytesBefore-o.BytesAfter)
	k.options.Log.Info().Str("origin", o.Origin).Int64("before", o.BytesBefore).Int64("after", o.BytesAfter).Float64("took_ms", 1000*o.Seconds).
		Msgf("defragmented the database: %s before, %s after", formatSize(o.BytesBefore), formatSize(o.BytesAfter))
}

// enter sets the phase, and logs if the member has to wait.
func (k *Maintainer) enter(phase, reason string, f facts) {
	k.mu.Lock()
	before := k.state.Phase
	if before != phase {
		k.state.Since = time.Now()
	}
	k.state.Phase, k.state.Reason = phase, reason
	k.state.ExpectedSeconds = k.estimator.expected(f.inUse).Seconds()
	k.mu.Unlock()
	if phase == Waiting && before != Waiting {
		k.options.Log.Info().Msg("waiting to defragment the database: " + reason)
	}
}

// State returns the current state.
func (k *Maintainer) State() state.Maintenance {
	k.mu.Lock()
	current, serving := k.state, k.serving.Load()
	k.mu.Unlock()
	current.Readers = k.options.Gate.Inside()
	if current.Phase == Running && serving != nil {
		current.Progress = k.progress(current, serving.cluster.copySize())
	}
	return current
}

// progress estimates the progress, from 0 to 1, as the greater of two ratios: the size of the copy to its expected
// size, and the elapsed time to the expected time. The size alone is too coarse, because etcd writes the copy in steps
// of ten thousand keys.
func (k *Maintainer) progress(running state.Maintenance, copied int64) float64 {
	expected := max(running.ExpectedSeconds, 0.001)
	written := float64(copied) / (expected * float64(k.estimator.perSecond()))
	return min(0.99, max(written, min(0.9, time.Since(running.Since).Seconds()/expected)))
}

// leaveTimeout limits how long a stopping member may spend on transferring leadership before it disconnects clients.
const leaveTimeout = 2 * time.Second

// maxWritePause limits how long writes are paused for a leadership transfer.
const maxWritePause = 2 * time.Second

// confirmTimeout limits how long the leader waits for the other members to confirm that they paused writes. A member
// running plain etcd never confirms.
const confirmTimeout = time.Second

// leave transfers leadership if this member is the leader. All members pause their writes during the transfer,
// because raft drops proposals that reach the old leader. If the transfer fails, etcd transfers leadership at the end
// of its shutdown, when no clients are connected to this member anymore.
func (k *Maintainer) leave(ctx context.Context, s *service) {
	if k.busy() { // during a client's defragmentation, reading the facts would block
		return
	}
	f := s.cluster.facts()
	if f.isSingle() || f.leader != f.self {
		return
	}
	to, ok := s.cluster.successor()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	turns, started := s.newSchedule(), time.Now()
	defer turns.release(ctx)
	var err error
	if !f.leasesDisabled() { // while leases are disabled, etcd rejects writes anyway
		err = turns.proposeTransfer(ctx)
	}
	if err == nil {
		err = s.cluster.handOver(ctx, to)
	}
	if err != nil {
		k.options.Log.Info().Err(err).Msg("cannot transfer leadership yet; etcd retries after clients are disconnected")
		return
	}
	k.options.Log.Info().Str("to", to.name).Dur("took_ms", time.Since(started)).Msg("transferred leadership before stopping")
}

// pauseWritesForClient makes all members pause their writes while a client transfers leadership, until done is
// called. If the writes cannot be paused, the transfer takes place anyway. Writes are not paused for a request that
// etcd would reject.
func (k *Maintainer) pauseWritesForClient(ctx context.Context, message any) (done func()) {
	s := k.serving.Load()
	to, ok := message.(*etcdserverpb.MoveLeaderRequest)
	if s == nil || !ok || k.busy() {
		return func() {}
	}
	if f := s.cluster.facts(); f.leader != f.self || f.leasesDisabled() || !f.canLead(types.ID(to.TargetID)) || !s.cluster.isAdmin(ctx) {
		return func() {}
	}
	if !k.moving.CompareAndSwap(false, true) {
		return func() {} // writes are already paused for another client's transfer
	}
	turns := s.newSchedule()
	if err := turns.proposeTransfer(ctx); err != nil {
		k.options.Log.Info().Err(err).Msg("cannot pause writes on other members while a client transfers leadership; writes may time out")
	}
	return func() {
		turns.release(ctx)
		k.moving.Store(false)
	}
}

// canLead reports whether id is another voting member to which this member is connected.
func (f facts) canLead(id types.ID) bool {
	return slices.ContainsFunc(f.members, func(p peer) bool { return p.id == id && id != f.self && p.active && !p.learner })
}

// proposeTransfer makes all members pause their writes until the leader changes. It returns once every member has
// confirmed that it has no write in progress, or after confirmTimeout.
func (p *claimSchedule) proposeTransfer(ctx context.Context) error {
	announced := p.newClaim(handover)
	if err := p.grant(ctx, announced, maxWritePause); err != nil {
		return fmt.Errorf("cannot announce the leadership transfer: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	active := p.activeMembers()
	for i, id := range active {
		err := p.await(within, claim{writesPaused, announced.nonce, uint32(id)}, true) //nolint:gosec // a claim contains only the low 32 bits of the ID
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.log.Info().Int("members", len(active)-i).Msg("some members did not confirm that they paused writes for the leadership transfer; writes may be delayed")
			return nil
		}
	}
	return nil
}

// activeMembers returns this member and all connected voting members, which may have clients that write.
func (p *claimSchedule) activeMembers() (all []types.ID) {
	self := p.server.MemberID()
	active := p.active(self)
	for _, m := range p.server.Cluster().Members() {
		if m.ID == self || active[m.ID] && !m.IsLearner {
			all = append(all, m.ID)
		}
	}
	return all
}

// writes lists the requests that members forward to the leader. During a transfer, raft silently drops such requests
// when they reach the old leader, and clients have to wait for the timeout (7 s by default).
var writes = []string{
	"/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact",
	"/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke",
}

const (
	// listenInterval is the interval at which a member polls for announced handovers.
	listenInterval = 10 * time.Millisecond
	// idleListenInterval replaces listenInterval while no client is writing.
	idleListenInterval = 100 * time.Millisecond
)

// listen polls for handovers announced by the leader and pauses this member's writes for each one.
func (k *Maintainer) listen(ctx context.Context, server *etcdserver.EtcdServer) {
	leases, heard, applied := claims{server}, []claim{}, uint64(0)
	for pause := listenInterval; clock.Sleep(ctx, pause) == nil; {
		before := applied
		if applied = server.AppliedIndex(); applied == before {
			pause = min(2*pause, idleListenInterval)
			continue
		}
		pause = listenInterval
		changed := server.LeaderChangedNotify() // must be called before Leader, so that no change is missed
		known := heard
		heard = leases.list(handover)
		for _, announced := range heard { // handle each announcement from the leader only once
			if !slices.Contains(known, announced) && announced.names(server.Leader()) {
				k.pauseWrites(ctx, changed, func(ctx context.Context) {
					confirmed := leases.newClaim(writesPaused)
					confirmed.nonce = announced.nonce
					_ = leases.propose(ctx, confirmed, maxWritePause) // if the confirmation fails, the leader goes ahead after confirmTimeout
				})
			}
		}
	}
}

// pauseWrites pauses writes until the leader changes, and calls confirm once no write is in progress.
func (k *Maintainer) pauseWrites(ctx context.Context, changed <-chan struct{}, confirm func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, maxWritePause)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		defer cancel()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	})
	started, end := time.Now(), k.writePause.begin("leadership is being transferred")
	defer func() {
		end()
		k.options.Log.Debug().Dur("took_ms", time.Since(started)).Msg("paused writes during the leadership transfer")
	}()
	if poll(ctx, pollInterval, nil, func() bool { return k.writes.Load() == 0 }) == nil {
		confirm(ctx) // may have no effect, because the old leader may drop the proposal
		<-ctx.Done()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.options.Log.Info().Dur("after_ms", maxWritePause).Msg("the leadership transfer did not finish in time; resuming writes, which may be delayed")
	}
}

// startWrite waits while writes are paused, and then counts a write as in progress until finishWrite is called. If
// ctx is done first, startWrite returns its error as a gRPC status.
func (k *Maintainer) startWrite(ctx context.Context) error {
	for {
		k.writes.Add(1) // must precede the check, so that pauseWrites does not miss a write
		over := k.writePause.endNotify()
		if over == nil {
			return nil
		}
		k.finishWrite()
		select {
		case <-over:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (k *Maintainer) finishWrite() { k.writes.Add(-1) }
