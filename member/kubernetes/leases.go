package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/rs/zerolog"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

// Kinds of leases.
const (
	OfMember = "member"
	OfFull   = "full_snapshot"
	OfDelta  = "delta_snapshot"
)

const (
	// heartbeat is the interval at which a member renews its lease: the operator considers a member lost after a
	// minute.
	heartbeat = 10 * time.Second
	// snapshotInterval is the interval at which the snapshot leases are checked. It equals the sidecar's default
	// interval for delta snapshots; the operator's tools tolerate twice their configured interval.
	snapshotInterval = 20 * time.Second
	// maxAttempts bounds the attempts to update a lease that others update at the same time.
	maxAttempts = 3
	// minPause and maxPause bound the pause after a failure. Pauses must be short enough that the operator does not
	// consider the member lost.
	minPause = time.Second
	maxPause = 20 * time.Second
)

// MemberLease is the content of a member's own lease.
type MemberLease struct {
	Name    string // name of the member and of the lease
	ID      string // hexadecimal
	Cluster string // ID of the cluster, hexadecimal
	Leads   bool
	PeerTLS bool // peers connect to it with TLS
}

func (m MemberLease) holder() string {
	role := "Member"
	if m.Leads {
		role = "Leader"
	}
	return m.ID + ":" + m.Cluster + ":" + role
}

// BackupLeases is the content of the snapshot leases, which the backup writer renews.
type BackupLeases struct {
	Full     int64     // revision of the newest full snapshot; 0 if there is none
	FullTime time.Time // time of its content
	Stored   int64     // newest revision in the store; 0 if there is none
	UpTo     time.Time // time up to which all acknowledged writes are in the store
}

// LeaseOptions configure Leases. All fields but Backups are required.
type LeaseOptions struct {
	Account Account
	Cluster string // name of the StatefulSet, which is the prefix of the names of the snapshot leases
	// Member returns the current member, or false if it knows no leader, so that its lease expires. It must not
	// block.
	Member func() (MemberLease, bool)
	// Backups returns the state of the backups, or false if this member does not write them. It must not block. It
	// is nil if no backups are made.
	Backups func() (BackupLeases, bool)
	Log     zerolog.Logger
}

// Leases renews the leases that a backup-restore sidecar would renew. From these leases, the operator's tools learn
// when a member was last active, whether it is the leader, and how current the backups are. The command calls Start
// when etcd is ready and Stop before etcd is closed, each at most once. Each lease has its own goroutine, so an API
// server that hangs on one lease does not delay the others. States is safe for concurrent use.
type Leases struct {
	options LeaseOptions
	server  *Server

	stop     context.CancelFunc // nil before Start
	renewing sync.WaitGroup

	mu     sync.Mutex
	states map[string]state.Lease
}

// NewLeases returns leases that are not renewed until Start is called.
func NewLeases(options LeaseOptions) *Leases {
	return &Leases{options: options, server: NewServer(options.Account), states: map[string]state.Lease{}}
}

// Start starts to renew the leases.
func (l *Leases) Start() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	for _, t := range l.tasks() {
		l.renewing.Go(func() {
			for ctx.Err() == nil {
				_ = clock.Sleep(ctx, l.perform(ctx, t))
			}
		})
	}
}

// Stop stops the renewals and returns once no request is running, which takes at most Timeout.
func (l *Leases) Stop() {
	if l.stop != nil {
		l.stop()
		l.renewing.Wait()
	}
}

// States returns the state of each lease that this member renews.
func (l *Leases) States() (all []state.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range []string{OfMember, OfFull, OfDelta} {
		if current, known := l.states[kind]; known {
			all = append(all, current)
		}
	}
	return all
}

// task is one lease and the function that renews it.
type task struct {
	kind     string
	interval time.Duration
	renew    func(ctx context.Context) (name, holder string, err error)
	pause    backoff.BackOff // backoff after a failure
}

func (l *Leases) tasks() []*task {
	newTask := func(kind string, interval time.Duration, renew func(context.Context) (string, string, error)) *task {
		return &task{kind: kind, interval: interval, renew: renew, pause: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(minPause), backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.3),
			backoff.WithMaxInterval(maxPause), backoff.WithMaxElapsedTime(0),
		)}
	}
	all := []*task{newTask(OfMember, heartbeat, l.renewMember)}
	if l.options.Backups != nil {
		all = append(all, newTask(OfFull, snapshotInterval, l.renewFull), newTask(OfDelta, snapshotInterval, l.renewDelta))
	}
	return all
}

// errNotOurs means that this member does not renew the lease.
var errNotOurs = errors.New("another member renews it")

var (
	errNoLeader = errors.New("this member knows no leader")
	errForeign  = errors.New("its holderIdentity is not a revision: another program uses this lease")
)

// perform renews one lease and returns the time until the next renewal, which the API server may extend after an
// error.
func (l *Leases) perform(ctx context.Context, t *task) (pause time.Duration) {
	request, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	name, holder, err := t.renew(request)
	if ctx.Err() != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.states[t.kind]
	switch {
	case errors.Is(err, errNotOurs): // another member renews the lease now
		delete(l.states, t.kind)
		return t.interval
	case err != nil:
		pause = t.pause.NextBackOff()
		if failed, ok := errors.AsType[*StatusError](err); ok {
			pause = max(pause, failed.After)
		}
		pause = min(pause, maxPause)
		l.recordProblem(t.kind, name, before, err, pause)
		return pause
	}
	t.pause.Reset()
	l.states[t.kind] = state.Lease{Kind: t.kind, Name: name, Holder: holder, Renewed: time.Now()}
	switch {
	case before.Problem != nil:
		l.options.Log.Info().Str("lease", name).Int("times", before.Problem.Count).Msg("a lease is renewed again")
	case before.Renewed.IsZero():
		l.options.Log.Info().Str("lease", name).Str("holder", holder).Msg("a lease is renewed")
	}
	return t.interval
}

// recordProblem records why a lease could not be renewed, and logs the reason if it is new.
func (l *Leases) recordProblem(kind, name string, current state.Lease, err error, pause time.Duration) {
	problem := state.LeaseProblem{Since: time.Now(), Count: 1, Message: err.Error(), NextRetry: time.Now().Add(pause)}
	before := current.Problem
	if before != nil {
		problem.Since, problem.Count = before.Since, before.Count+1
	}
	if before == nil || before.Message != problem.Message {
		l.options.Log.Warn().Str("lease", name).Str("reason", problem.Message).
			Msg("renewing a lease failed: the operator's tools see an outdated state; retrying, etcd keeps serving")
	}
	current.Kind, current.Name, current.Problem = kind, name, &problem
	l.states[kind] = current
}

// tlsAnnotation is the annotation for which the operator waits before it makes members require TLS from each other.
const tlsAnnotation = "member.etcd.gardener.cloud/tls-enabled"

// renewMember renews the member's own lease. Only this member writes it, so it need not be read first.
func (l *Leases) renewMember(ctx context.Context) (name, holder string, err error) {
	member, ok := l.options.Member()
	if !ok {
		return member.Name, member.holder(), errNoLeader
	}
	return member.Name, member.holder(), l.server.Patch(ctx, leases, member.Name, lease{
		Metadata: leaseMetadata{Annotations: map[string]string{tlsAnnotation: strconv.FormatBool(member.PeerTLS)}},
		Spec:     leaseSpec{HolderIdentity: member.holder(), RenewTime: microTime{time.Now()}},
	})
}

// renewFull writes the newest full snapshot to its lease. A lease with a later revision is not changed.
func (l *Leases) renewFull(ctx context.Context) (name, holder string, err error) {
	backups, ok := l.options.Backups()
	if !ok || backups.Full == 0 {
		return "", "", errNotOurs
	}
	return l.update(ctx, l.options.Cluster+"-full-snap", func(revision int64, renewed time.Time) (spec leaseSpec, changes bool) {
		changes = revision < backups.Full || revision == backups.Full && renewed.Before(backups.FullTime.Truncate(time.Microsecond))
		return leaseSpec{HolderIdentity: strconv.FormatInt(backups.Full, 10), RenewTime: microTime{backups.FullTime}}, changes
	})
}

// renewDelta writes the newest revision in the store to its lease. As with a sidecar, the revision never decreases.
// While the store lags behind, the time does not change.
func (l *Leases) renewDelta(ctx context.Context) (name, holder string, err error) {
	backups, ok := l.options.Backups()
	if !ok || backups.Stored == 0 {
		return "", "", errNotOurs
	}
	return l.update(ctx, l.options.Cluster+"-delta-snap", func(revision int64, _ time.Time) (spec leaseSpec, changes bool) {
		return leaseSpec{HolderIdentity: strconv.FormatInt(max(revision, backups.Stored), 10), RenewTime: microTime{backups.UpTo}}, true
	})
}

// update changes a lease that another member may write at the same time.
func (l *Leases) update(
	ctx context.Context, name string, change func(revision int64, renewed time.Time) (spec leaseSpec, changes bool),
) (_, holder string, err error) {
	for range maxAttempts {
		var current lease
		if err := l.server.Get(ctx, leases, name, &current); err != nil {
			return name, "", err
		}
		revision, err := strconv.ParseInt(current.Spec.HolderIdentity, 10, 64)
		if err != nil && current.Spec.HolderIdentity != "" {
			return name, "", errForeign
		}
		spec, changes := change(revision, current.Spec.RenewTime.Time)
		if !changes {
			return name, current.Spec.HolderIdentity, nil
		}
		err = l.server.Patch(ctx, leases, name, lease{Metadata: leaseMetadata{ResourceVersion: current.Metadata.ResourceVersion}, Spec: spec})
		if failed, ok := errors.AsType[*StatusError](err); !ok || failed.Status != http.StatusConflict {
			return name, spec.HolderIdentity, err
		}
	}
	return name, "", errors.New("other members keep updating it")
}

// leases is the kind Lease.
var leases = Kind{Group: "coordination.k8s.io/v1", Plural: "leases", Noun: "lease", Verbs: "get and patch"}

// lease contains the fields of a coordination.k8s.io/v1 Lease that are used. It also serves as a merge patch.
type lease struct {
	Metadata leaseMetadata `json:"metadata,omitzero"`
	Spec     leaseSpec     `json:"spec"`
}

type leaseMetadata struct {
	ResourceVersion string            `json:"resourceVersion,omitempty"` // in a patch: applies only if the lease still has this version
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type leaseSpec struct {
	HolderIdentity string    `json:"holderIdentity,omitempty"`
	RenewTime      microTime `json:"renewTime,omitzero"`
}

// microTime is the format of times in leases and Events, for which Kubernetes requires exactly six fractional
// digits.
type microTime struct{ time.Time }

const microFormat = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(microFormat)) }
