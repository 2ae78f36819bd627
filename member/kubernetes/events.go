package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/rs/zerolog"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/member/state"
)

// Event is a Kubernetes Event to post.
type Event struct {
	Reason  string // one CamelCase word, by which events can be filtered
	Subject string // distinguishes events with the same reason; may be empty
	Warning bool
	Note    string // one sentence for users
	At      time.Time
}

// EventPod is the pod that the events are about.
type EventPod struct {
	Name string
	UID  string // if empty, `kubectl describe pod` does not show the events
}

const (
	// maxQueue is the maximum number of queued events. When the queue is full, new events are dropped.
	maxQueue = 64
	// repeatPause is the time for which repetitions of an event are held back. The latest one is then posted with a
	// count.
	repeatPause = 5 * time.Minute
	// stopTimeout limits how long Stop keeps posting queued events.
	stopTimeout = time.Second
	// maxNote is the maximum length of a note, in bytes, that the API server accepts.
	maxNote = 1024
)

// EventRecorder posts events from a goroutine that runs until Stop is called. Post is safe for concurrent use.
type EventRecorder struct {
	post   func(context.Context, Event) error
	log    zerolog.Logger
	queue  chan Event
	stop   chan struct{}
	cancel context.CancelFunc // cancels a running request
	done   chan struct{}

	// The fields below are used only by the goroutine.
	recent  map[string]*repeat // recently posted events, by reason and subject
	failure string             // error of the last request; empty if it succeeded
}

// repeat contains the held-back repetitions of an event.
type repeat struct {
	until  time.Time // repetitions are held back until this time
	latest Event
	times  int // number of held-back repetitions
}

// NewEventRecorder starts a goroutine that posts events about a pod.
func NewEventRecorder(account Account, pod EventPod, log zerolog.Logger) *EventRecorder {
	server := NewServer(account)
	return startRecorder(func(ctx context.Context, e Event) error {
		namespace, err := account.read("namespace")
		if err != nil {
			return err
		}
		return server.Create(ctx, eventKind, newEventObject(namespace, pod, e))
	}, log)
}

func startRecorder(post func(context.Context, Event) error, log zerolog.Logger) *EventRecorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &EventRecorder{
		post: post, log: log, queue: make(chan Event, maxQueue), stop: make(chan struct{}), cancel: cancel, done: make(chan struct{}),
		recent: map[string]*repeat{},
	}
	go r.run(ctx)
	return r
}

// Post queues an event. Post never blocks.
func (r *EventRecorder) Post(e Event) {
	select {
	case r.queue <- e:
	default:
		r.log.Debug().Str("event", e.Reason).Msg("dropping an event: too many events are queued for the API server")
	}
}

// Stop spends up to a second posting queued events, and waits for pending requests to finish. Post must not be called
// after Stop.
func (r *EventRecorder) Stop() {
	close(r.stop)
	defer time.AfterFunc(stopTimeout, r.cancel).Stop()
	<-r.done
}

func (r *EventRecorder) run(ctx context.Context) {
	defer close(r.done)
	defer r.cancel()
	clock := time.NewTicker(repeatPause / 10)
	defer clock.Stop()
	for {
		select {
		case e := <-r.queue:
			r.accept(ctx, e)
		case <-clock.C:
			r.postRepeats(ctx, false)
		case <-r.stop:
			for len(r.queue) > 0 {
				r.accept(ctx, <-r.queue)
			}
			r.postRepeats(ctx, true)
			return
		}
	}
}

// accept posts an event, or holds it back if an event with the same reason and subject was posted recently.
func (r *EventRecorder) accept(ctx context.Context, e Event) {
	key := e.Reason + "/" + e.Subject
	if before := r.recent[key]; before != nil {
		before.latest = e
		before.times++
		return
	}
	r.recent[key] = &repeat{until: time.Now().Add(repeatPause)}
	r.send(ctx, e)
}

// postRepeats posts the latest repetition of each event that has been held back for repeatPause, or of every held-back
// event if all is set.
func (r *EventRecorder) postRepeats(ctx context.Context, all bool) {
	for key, held := range r.recent {
		switch {
		case !all && time.Now().Before(held.until):
			continue
		case held.times == 0:
			delete(r.recent, key)
			continue
		case held.times > 1:
			held.latest.Note += fmt.Sprintf(" (%d times within %s)", held.times, repeatPause)
		}
		r.recent[key] = &repeat{until: time.Now().Add(repeatPause)}
		r.send(ctx, held.latest)
	}
}

// send posts one event without retrying. It logs an error only if it differs from the previous one.
func (r *EventRecorder) send(ctx context.Context, e Event) {
	within, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	err := r.post(within, e)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case err == nil:
		r.failure = ""
	case err.Error() != r.failure:
		r.failure = err.Error()
		r.log.Warn().Str("event", e.Reason).Str("reason", r.failure).Msg("cannot post an event; dropping it")
	}
}

var eventKind = Kind{Group: "events.k8s.io/v1", Plural: "events", Noun: "Event", Verbs: "create"}

// reporter is the reportingController of all events.
const reporter = "etcd-wrapper"

// newEventObject returns an events.k8s.io/v1 Event.
func newEventObject(namespace string, pod EventPod, e Event) map[string]any {
	severity := "Normal"
	if e.Warning {
		severity = "Warning"
	}
	regarding := map[string]string{"apiVersion": "v1", "kind": "Pod", "name": pod.Name, "namespace": namespace}
	if pod.UID != "" {
		regarding["uid"] = pod.UID
	}
	return map[string]any{
		"apiVersion": eventKind.Group, "kind": eventKind.Noun, "type": severity, "reason": e.Reason, "action": e.Reason, "note": truncate(e.Note),
		"metadata":  map[string]string{"generateName": pod.Name + "-", "namespace": namespace},
		"eventTime": microTime{e.At}, "reportingController": reporter, "reportingInstance": pod.Name, "regarding": regarding,
	}
}

func truncate(note string) string {
	const end = "…"
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len(end)], "") + end
	}
	return note
}

// Lease kinds, as in the status document.
const (
	OfMember = "member"
	OfFull   = "full_snapshot"
	OfDelta  = "delta_snapshot"
)

const (
	// heartbeat is the interval at which a member renews its lease. The operator considers a member lost after a
	// minute without renewal.
	heartbeat = 10 * time.Second
	// snapshotInterval is the interval at which the snapshot leases are updated. It equals the sidecar's default
	// interval for delta snapshots; the operator's tools tolerate twice the configured interval.
	snapshotInterval = 20 * time.Second
	// maxAttempts is the maximum number of attempts to update a lease that other clients keep changing.
	maxAttempts = 3
	// minPause and maxPause limit the pause before a retry. After a pause longer than maxPause, the operator might
	// consider the member lost.
	minPause = time.Second
	maxPause = 20 * time.Second
)

// MemberLease is the content of a member's own lease.
type MemberLease struct {
	Name    string // name of the member and of the lease
	ID      string // hexadecimal
	Cluster string // cluster ID, hexadecimal
	Leads   bool
	PeerTLS bool // the peer URLs use TLS
}

func (m MemberLease) holder() string {
	role := "Member"
	if m.Leads {
		role = "Leader"
	}
	return m.ID + ":" + m.Cluster + ":" + role
}

// BackupLeases is the content of the snapshot leases.
type BackupLeases struct {
	Full     int64     // revision of the newest full snapshot; 0 if there is none
	FullTime time.Time // time at which the full snapshot was taken
	Stored   int64     // newest revision in the store; 0 if there is none
	UpTo     time.Time // all writes acknowledged before this time are in the store
}

// LeaseOptions configure Leases. All fields except Backups are required.
type LeaseOptions struct {
	Account Account
	Cluster string // name of the StatefulSet; prefix of the names of the snapshot leases
	// Member returns the content of the member's lease, or false if there is no leader, in which case the lease is
	// left to expire. Member must not block.
	Member func() (MemberLease, bool)
	// Backups returns the content of the snapshot leases, or false if this member does not write backups. Backups
	// must not block. Backups is nil if there are no backups.
	Backups func() (BackupLeases, bool)
	Log     zerolog.Logger
}

// Leases renews the leases that a backup-restore sidecar would renew. The leases tell the operator's tools when a
// member was last active, whether it is the leader, and how recent the backups are. Start must be called after etcd
// is ready, and Stop before etcd is closed, each at most once. Each lease has its own goroutine, so a hanging request
// for one lease does not delay the others. States is safe for concurrent use.
type Leases struct {
	options LeaseOptions
	server  *Server

	stop     context.CancelFunc // nil before Start
	renewing sync.WaitGroup

	mu     sync.Mutex
	states map[string]state.Lease
}

// NewLeases returns Leases that are renewed once Start is called.
func NewLeases(options LeaseOptions) *Leases {
	return &Leases{options: options, server: NewServer(options.Account), states: map[string]state.Lease{}}
}

// Start starts renewing the leases.
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

// Stop stops renewing the leases and waits for pending requests to finish.
func (l *Leases) Stop() {
	if l.stop != nil {
		l.stop()
		l.renewing.Wait()
	}
}

// States returns the states of the leases that this member renews.
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

// task describes how to renew one lease.
type task struct {
	kind     string
	interval time.Duration
	renew    func(ctx context.Context) (name, holder string, err error)
	pause    backoff.BackOff // pauses before retries
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

// errNotOurs is returned if renewing the lease is up to another member.
var errNotOurs = errors.New("another member renews the lease")

var (
	errNoLeader = errors.New("this member has no leader")
	errForeign  = errors.New("the lease's holderIdentity is not a revision: another program uses the lease")
)

// perform renews one lease and returns how long to wait before the next renewal. If the request fails, the API server
// may ask for a longer wait.
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
	case errors.Is(err, errNotOurs): // this member no longer renews the lease
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
		l.options.Log.Info().Str("lease", name).Int("times", before.Problem.Count).Msg("renewed the lease after previous failures")
	case before.Renewed.IsZero():
		l.options.Log.Info().Str("lease", name).Str("holder", holder).Msg("renewed the lease for the first time")
	}
	return t.interval
}

// recordProblem records why a lease could not be renewed, and logs the reason if it differs from the previous one.
func (l *Leases) recordProblem(kind, name string, current state.Lease, err error, pause time.Duration) {
	problem := state.LeaseProblem{Since: time.Now(), Count: 1, Message: err.Error(), NextRetry: time.Now().Add(pause)}
	before := current.Problem
	if before != nil {
		problem.Since, problem.Count = before.Since, before.Count+1
	}
	if before == nil || before.Message != problem.Message {
		l.options.Log.Warn().Str("lease", name).Str("reason", problem.Message).
			Msg("cannot renew the lease, so the operator's tools see outdated information; retrying, etcd keeps serving")
	}
	current.Kind, current.Name, current.Problem = kind, name, &problem
	l.states[kind] = current
}

// tlsAnnotation is the name of the annotation whose value is "true" if a member uses TLS for peer connections. The
// operator waits for this value before it makes peer TLS mandatory.
const tlsAnnotation = "member.etcd.gardener.cloud/tls-enabled"

// renewMember renews this member's lease. It does not read the lease first, because no other member writes to it.
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

// renewFull records the newest full snapshot in its lease, unless the lease already has a newer revision.
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

// renewDelta records the newest revision in the store in its lease. As with the sidecar, the revision never
// decreases. If the store lags, the lease's renewal time is the time of the oldest change that is not stored yet.
func (l *Leases) renewDelta(ctx context.Context) (name, holder string, err error) {
	backups, ok := l.options.Backups()
	if !ok || backups.Stored == 0 {
		return "", "", errNotOurs
	}
	return l.update(ctx, l.options.Cluster+"-delta-snap", func(revision int64, _ time.Time) (spec leaseSpec, changes bool) {
		return leaseSpec{HolderIdentity: strconv.FormatInt(max(revision, backups.Stored), 10), RenewTime: microTime{backups.UpTo}}, true
	})
}

// update changes a lease that another member may be changing concurrently, and retries after conflicts. change
// receives the revision and the renewal time in the lease. It returns the new spec, and whether the lease needs to be
// changed.
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
	return name, "", errors.New("other members keep updating the lease")
}

// leases is the Lease kind.
var leases = Kind{Group: "coordination.k8s.io/v1", Plural: "leases", Noun: "lease", Verbs: "get and patch"}

// lease contains the relevant fields of a coordination.k8s.io/v1 Lease. It also serves as a merge patch.
type lease struct {
	Metadata leaseMetadata `json:"metadata,omitzero"`
	Spec     leaseSpec     `json:"spec"`
}

type leaseMetadata struct {
	ResourceVersion string            `json:"resourceVersion,omitempty"` // in a patch, the only version to which the patch may be applied
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type leaseSpec struct {
	HolderIdentity string    `json:"holderIdentity,omitempty"`
	RenewTime      microTime `json:"renewTime,omitzero"`
}

// microTime is a time in a Lease or an Event, formatted with exactly six fractional digits.
type microTime struct{ time.Time }

const microFormat = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(microFormat)) }
