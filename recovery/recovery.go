// Package recovery decides what becomes of etcd's data directory before etcd may open it, and does it: data that are broken,
// lost or were put back to an older state come back from the backups where that is safe, and where it is not one sentence
// says why. A run of it is a table of states on the lifecycle's core (table.go); nothing is deleted, what is replaced is set
// aside by a rename, and after a crash at any instant the next run comes to the same end.
//
// It answers the lifecycle in the sidecar's words (initialization.go). What it needs of the command is in Options.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
	"etcd-wrapper/statemachine"
)

// Options configure a Recovery. Config, VolumeDir and Validate are required.
type Options struct {
	Config    etcdconf.Source           // etcd's configuration, which names the data directory
	Archive   *archive.Archive          // nil without a store: then only peers have other data
	Owner     func(token string) string // returns the store's expected owner, NAMESPACE/NAME, for an initial-cluster-token; nil without a store
	Adopt     string                    // --adopt: the ID of the cluster to adopt once, with /N if that ends generation N; empty if none
	VolumeDir string                    // where the record is stored
	Never     bool                      // --recover=never
	Request   *Request                  // a restore to do once; nil if none is requested
	Reach     peers.Options             // how to reach the other members, in addition to etcd's configuration
	Validate  datadir.Validation        // validates a data directory
	// Inspect checks a database that was fetched, before it is opened for changes; see restore.Options. It may be
	// nil.
	Inspect func(ctx context.Context, path string) error
	// Flush uploads what the database of a closed etcd has and the store lacks; nil if nothing can.
	Flush func(ctx context.Context, dataDir string, stands datadir.Position) error
	// FlushSpool uploads segments that wait on the volume, and may be repeated. It skips what data with an identity
	// have up to a revision; without an identity there are no data. It is nil without a store.
	FlushSpool func(ctx context.Context, data archive.Identity, reach int64) error
	SpoolDir   string // where segments wait; empty if none can
	// Died returns the reason of etcd's crash at the last start; empty if there was none. It may be nil.
	Died func() string
	// Lost reports whether a run has served data from a data directory, by the notes on the volume. It may be nil.
	Lost func(dataDir string) bool
	// Ended is called with the outcome of a run that had something to restore. It may be nil.
	Ended func(Outcome)

	Log zerolog.Logger
}

// A Request is a restore that the user wants.
type Request struct {
	Target archive.Target
	ID     string // it is done once
}

// A Member is what etcd's configuration says about the member.
type Member struct {
	DataDir  string
	Name     string
	PeerURLs types.URLs    // advertised
	Token    string        // initial-cluster-token
	Joins    bool          // initial-cluster-state is existing
	Forced   bool          // force-new-cluster: the user lets it continue without the others
	Alone    bool          // initial-cluster names no other member
	Members  types.URLsMap // of initial-cluster
	Peers    Peers         // the other members; nil if the configuration names none
}

// Peers are the other members of the cluster. Package peers asks them over the network.
type Peers interface {
	// Query asks how they list this member.
	Query(ctx context.Context, self peers.Self) peers.Survey
	// Publish reports the state of this member to them, as Query does.
	Publish(self peers.Self)
	// Remove removes this member's old identity from the cluster. It may be repeated.
	Remove(ctx context.Context, survey *peers.Survey) error
	// Add adds this member to the cluster as a learner. It may be repeated.
	Add(ctx context.Context, survey *peers.Survey) error
}

// A Recovery decides what happens to a data directory. Only one run is active at a time. Its exported methods may be
// called from any goroutine.
type Recovery struct {
	options Options
	volume  datadir.Validator
	rules   *statemachine.Rules[Facts, Facts]

	interrupt  func(Action) error                    // for tests: an error ends the run before an action
	measure    func(seed.Seed, restore.Source) error // checks the free space; replaced in tests
	now        func() time.Time                      // replaced in tests
	wait       func(ctx context.Context, times int)  // between two questions to the store or the peers
	lateMounts time.Duration                         // how long no member must have usable data before a cluster of several is restored
	serveAfter time.Duration                         // how long valid data wait for a store that does not answer
	stillness  time.Duration                         // how long a generation must not be extended before it is replaced

	stopped context.Context // ends with Close; the parent of every run's context
	stop    context.CancelFunc
	running sync.WaitGroup

	// Used by one run at a time.
	said     bool // it was logged that the requested restore was done before
	replaced bool // the data that the last start crashed on were moved

	mu       sync.Mutex // guards the fields below
	progress Progress
	status   bootstrap.InitializationStatus
	config   etcdconf.Document // used by the last initialization; empty if there was none
	why      error             // why it failed; nil if it did not, or none has ended
}

// New returns a Recovery in status New, which has changed nothing yet. The caller must call Close.
func New(options Options) *Recovery {
	stillness, err := time.ParseDuration(stillness)
	if err != nil {
		panic("recovery: the linker has set no duration: " + err.Error())
	}
	stopped, stop := context.WithCancel(context.Background())
	return &Recovery{
		stopped: stopped, stop: stop, status: bootstrap.New, options: options, volume: datadir.Validator{Run: options.Validate},
		rules: NewRules(Table, Elsewhere), measure: seed.Seed.CheckRoom, now: time.Now, wait: backOff,
		stillness: stillness, serveAfter: comparing, lateMounts: settling,
	}
}

// prepare brings the data directory into a state in which etcd may open it. It returns the members of an existing
// cluster that the member joins, empty if its configuration applies, or a *Refusal that says why etcd may not open
// it. When ctx ends it returns the cause; the next run continues. It is called before etcd is opened, by the holder
// of the volume's lock. examine validates the data directory in use.
func (r *Recovery) prepare(ctx context.Context, member Member, examine func(context.Context) error) (initialCluster string, err error) {
	lost := r.options.Lost != nil && r.options.Lost(member.DataDir)
	member.DataDir = seed.Place(member.DataDir)
	now := &run{Recovery: r, session: archive.NewID(), lost: lost, ctx: ctx, member: member, examine: examine, legal: statemachine.NewLegality(Table, Resume)}
	now.core = statemachine.Core[Facts]{State: Resume, Facts: Facts{Never: r.options.Never, Store: r.options.Archive != nil}}
	r.tell(func(p *Progress) { *p = Progress{State: Resume, Since: time.Now()} })
	defer now.release()
	err = now.drive()
	now.count()
	return now.joins, err
}

// A run is one run of the machine.
type run struct {
	*Recovery

	ctx         context.Context
	member      Member
	examine     func(context.Context) error
	core        statemachine.Core[Facts]
	legal       *statemachine.Legality
	ended       error     // why it is refused
	silent      int       // questions in a row without an answer from the store, or from a quorum of the peers
	silentSince time.Time // since when the store has not answered; zero if it has, or was not asked
	looked      int       // how often a missing object was searched again
	lost        bool      // data were served from the data directory, which is empty now
	joins       string    // members of the existing cluster that this one joins; empty if the configuration applies

	held     *os.File // what was built, locked; nil if nothing is
	life     life     // of the process that writes the generation to be replaced
	reason   string   // why it is in its state
	waitsFor string   // why the peers are waited for

	outcome  Outcome  // of the run; without an end as long as nothing is restored
	decision Decision // the last one
	learned  learned  // the event before the last decision

	result     error            // of validating the volume
	stands     datadir.Position // of the volume
	identity   archive.Identity // of the volume
	older      error            // what the store has more than a valid volume; nil if nothing, or unknown
	asked      bool             // a restore is requested that was not done
	refused    bool             // the data were refused by an earlier comparison with the store
	kept       inStore          // what the store has
	position   position         // of what is about to be claimed
	needs      int64            // revision that a member of a quorum must have, by the store; 0 if unknown
	own        string           // ID of this member's cluster, as far as the volume or the store name it
	etcd       string           // etcd's ID of it, by the store; for members that report no ID
	storeAway  bool             // the store could not be asked for that
	whoseAsked time.Time        // when it was asked last
	session    string           // of this run
	lostSince  time.Time        // since when no member has reported usable data; zero if one has
	survey     peers.Survey     // answers of the other members
}

// drive handles events until the run ends.
func (r *run) drive() error {
	event, payload := Begun, Facts{}
	for {
		actions, err := r.take(event, payload)
		if err != nil {
			return err
		}
		if event, payload, err = r.do(actions); err != nil {
			return err
		}
		if event == "" || r.core.State == Refused {
			break
		}
		if r.ctx.Err() != nil {
			return fmt.Errorf("recovery was stopped in %s: %w", r.core.State, context.Cause(r.ctx))
		}
	}
	if r.core.State == Ready {
		if err := errors.Join(r.identify(), r.forgetRefusal()); err != nil {
			return err
		}
		peers.PublishOpened(r.stands.HighestRevision, r.identity)
		r.relieve()
		r.foresee()
		return nil
	}
	if r.core.Facts.refusedByStore() {
		if err := r.RememberRefusal(r.member.DataDir, r.ended); err != nil {
			r.options.Log.Error().Err(err).Msg("recovery: the refusal is not remembered on the volume")
		}
	}
	return r.ended
}

// forgetRefusal removes the note about data that may be opened by now.
func (r *run) forgetRefusal() error {
	kept, err := r.readRecord()
	if err != nil || kept.Refused == nil {
		return err
	}
	return r.change(func(kept *record) { kept.Refused = nil })
}

// take looks an event up in the table, and checks the step with the library's machine.
func (r *run) take(event Event, payload Facts) ([]Action, error) {
	from := r.core.State
	core, decision := r.rules.Step(r.core, event, payload)
	if decision.Row < 0 {
		return nil, fmt.Errorf("recovery: %q in %s is answered by no row: %s", event, from, decision.Why)
	}
	if err := r.legal.Take(r.rules.Row(decision.Row)); err != nil {
		return nil, fmt.Errorf("recovery: %w", err)
	}
	r.core = core
	switch {
	case decision.To == Decide: // the result is reported instead
		r.learned = learned{from, event, payload}
	case from == Decide:
		decision.Why = r.decision.Why
		r.report(r.learned, decision)
	default:
		r.report(learned{from, event, payload}, decision)
	}
	return decision.Do, nil
}

// learned is an event with the state in which it came.
type learned struct {
	from    State
	event   Event
	payload Facts
}

// decideNow applies the rules.
func (r *run) decideNow() (Event, Facts) {
	r.decision = decide(r.core.Facts.caseOf())
	return r.decision.Result, Facts{}
}

// do executes the actions of a row in order, until one ends with an event.
func (r *run) do(actions []Action) (Event, Facts, error) {
	for _, action := range actions {
		if r.interrupt != nil {
			if err := r.interrupt(action); err != nil {
				return "", Facts{}, err
			}
		}
		if action == PaceStore || action == PacePeers {
			r.pause(action)
			return Elapsed, Facts{}, nil
		}
		do, bound := work[action]
		if !bound {
			return "", Facts{}, fmt.Errorf("action %q does nothing: bind it in work", action)
		}
		if event, payload := do(r); event != "" {
			return event, payload, nil
		}
	}
	return "", Facts{}, nil
}

// pause waits before a question is repeated. Peers that have answered are asked again soon, as they change their list
// of members one after the other.
func (r *run) pause(action Action) {
	times := r.silent + r.looked + 1
	if action == PacePeers {
		times = max(0, min(r.silent-eager, 1))
	}
	r.tell(func(p *Progress) { p.Reason = r.reason + "; the next try is within " + atMost(times).String() })
	ctx, cancel := r.ctx, func() {}
	if action == PaceStore && !r.life.until.IsZero() {
		ctx, cancel = context.WithTimeout(r.ctx, r.life.until.Sub(r.now()))
	}
	r.wait(ctx, times)
	cancel()
	r.silent++
}

// work binds the actions. An empty event means that the next action follows.
var work = map[Action]func(*run) (Event, Facts){
	ReadPosition:    (*run).readPosition,
	DropUnfinished:  (*run).dropUnfinished,
	ForgetClaim:     (*run).forgetClaim,
	ValidateVolume:  (*run).validateVolume,
	DecideNow:       (*run).decideNow,
	AskThePeers:     (*run).askThePeers,
	TellReturn:      (*run).tellReturn,
	RemoveMember:    (*run).removeMember,
	AddMember:       (*run).addMember,
	AdoptCluster:    (*run).adoptCluster,
	TakeStore:       (*run).adoptStore,
	AskTheStore:     (*run).askTheStore,
	TellLoss:        (*run).tellLoss,
	FlushSpool:      (*run).flushSpool,
	FlushVolume:     (*run).flushVolume,
	FindEnd:         (*run).findEnd,
	MeasureRoom:     (*run).measureRoom,
	EndAdopted:      (*run).endAdopted,
	BuildData:       (*run).buildData,
	ProveData:       (*run).proveData,
	TellPeers:       (*run).tellPeers,
	NotePosition:    (*run).notePosition,
	ClaimGeneration: (*run).claimGeneration,
	SetVolumeAside:  (*run).setVolumeAside,
	InstallData:     (*run).installData,
	Remember:        (*run).remember,
}

// broke returns the event for something that could not be done.
func broke(err error) (Event, Facts) { return Broke, Facts{Err: err} }

// next returns the event of an action that is followed by another one.
func next(err error) (Event, Facts) {
	if err != nil {
		return broke(err)
	}
	return "", Facts{}
}

const (
	firstPause   = 1500 * time.Millisecond
	longestPause = 23 * time.Second
	moment       = 300 * time.Millisecond // before a question is repeated that was answered
)

// comparing bounds how long valid data wait for the store that they are compared with.
const comparing = 10 * time.Second

// settling bounds how long a cluster whose volumes are all empty waits for volumes that are mounted late.
const settling = 10 * time.Second

// settled reports whether no member has had usable data for that long.
func (r *run) settled() bool {
	if listing := r.survey.Membership; listing != peers.Gone && listing != peers.Founding {
		r.lostSince = time.Time{}
		return false
	}
	if r.lostSince.IsZero() {
		r.lostSince = r.now()
	}
	return r.now().Sub(r.lostSince) >= r.lateMounts
}

// beforeServing bounds a question to the store: if valid data wait for the answer, by what is left of their time.
func (r *run) beforeServing(most time.Duration) (context.Context, context.CancelFunc) {
	if r.silentSince.IsZero() {
		r.silentSince = r.now()
	}
	if facts := r.core.Facts; (facts.Alone || facts.Unidentified) && facts.Volume == VolumeValid && !facts.Asked && !facts.Behind {
		most = min(most, max(time.Second, r.serveAfter-r.now().Sub(r.silentSince)))
	}
	return context.WithTimeout(r.ctx, most)
}

// atMost returns the longest pause of backOff in whole seconds, which grows by half each time.
func atMost(times int) time.Duration {
	pause := firstPause
	for range min(times, 20) {
		pause = min(pause*3/2, longestPause)
	}
	return pause.Round(time.Second)
}

// backOff waits before a question is repeated that stayed unanswered so many times, or until ctx ends. Members that
// were started together must not all ask at the same moment.
func backOff(ctx context.Context, times int) {
	pause := moment
	if times > 0 {
		pause = atMost(times)/3 + rand.N(atMost(times)*2/3)
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// eager is the number of questions to peers without a longer pause: members that start together find each other soon.
const eager = 10
