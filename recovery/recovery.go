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

// Options are what a Recovery works with. Config, VolumeDir and Validate are required.
type Options struct {
	Config    etcdconf.Source           // etcd's configuration, which names the data directory
	Archive   *archive.Archive          // nil without a store: then only peers can bring data back
	Owner     func(token string) string // whose the store has to be, NAMESPACE/NAME, by initial-cluster-token; nil without a store
	Adopt     string                    // --adopt: the id of the cluster whose store is to be taken, once, and /N if that ends generation N; empty if none is
	VolumeDir string                    // where the position is kept
	Never     bool                      // --recover=never
	Request   *Request                  // to go back once; nil if that is not asked for
	Reach     peers.Options             // how the other members are reached, beside what etcd's configuration says
	Validate  datadir.Validation        // judges a data directory
	// Inspect looks at a database that was fetched, before it is opened to be changed; rebuild.Options has more. It may be nil.
	Inspect func(ctx context.Context, path string) error
	// Flush brings what a closed etcd's database has into the store; nil if nothing can.
	Flush func(ctx context.Context, dataDir string, stands datadir.Position) error
	// FlushSpool brings what waits on the volume for the store there, and may be repeated. What data of an identity have as well, up to a
	// revision, need not be brought; without one there are no data. It is nil without a store.
	FlushSpool func(ctx context.Context, data archive.Identity, reach int64) error
	SpoolDir   string // where that waits; empty if nothing can
	// Died is what etcd died of at the last start on the volume; empty if it did not. It may be nil.
	Died func() string
	// Lost reports whether a run has served data from a data directory, by the notes on the volume. It may be nil.
	Lost func(dataDir string) bool
	// Ended is told how a run has ended that had something to bring back. It may be nil.
	Ended func(Outcome)

	Log zerolog.Logger
}

// Request is a restore that is asked for.
type Request struct {
	Target archive.Target
	ID     string // it is done once
}

// Member is what etcd's configuration says of the member.
type Member struct {
	DataDir  string
	Name     string
	PeerURLs types.URLs    // that it advertises
	Token    string        // initial-cluster-token
	Joins    bool          // the cluster is one that exists already
	Forced   bool          // somebody has said by force-new-cluster that it goes on without the others
	Alone    bool          // no other member is in initial-cluster
	Members  types.URLsMap // that the cluster is configured with
	Peers    Peers         // the other members; nil if the configuration names none
}

// Peers are the other members of the cluster; package peers has those that are asked over the network.
type Peers interface {
	// Ask tells how they have this member.
	Ask(ctx context.Context, self peers.Self) peers.Survey
	// Tell has them hear, if they ask, how this member is. Ask does that, too.
	Tell(self peers.Self)
	// Remove takes this member's old identity out of the cluster. It may be repeated.
	Remove(ctx context.Context, survey *peers.Survey) error
	// Add has the cluster take this member in as a learner. It may be repeated.
	Add(ctx context.Context, survey *peers.Survey) error
}

// Recovery decides what becomes of a data directory. One run goes on at a time. Its exported methods may be called from any goroutine.
type Recovery struct {
	options Options
	volume  datadir.Validator
	rules   *statemachine.Rules[Facts, Facts]

	interrupt  func(Action) error                    // for tests: an error ends the run in front of an action
	measure    func(seed.Seed, restore.Source) error // whether there is room; tests have volumes of their own
	now        func() time.Time                      // tests have clocks of their own
	wait       func(ctx context.Context, times int)  // between two questions to the store or the peers
	lateMounts time.Duration                         // how long nobody has to have data of use before a cluster of several is restored
	serveAfter time.Duration                         // how long valid data wait for a store that does not answer
	stillness  time.Duration                         // how long nobody may have added to a generation before it is replaced

	stopped context.Context // ends with Close; the context of every run
	stop    context.CancelFunc
	running sync.WaitGroup

	// Of one run at a time.
	said     bool // that the restore that is asked for was done before
	replaced bool // the data that the last start died of are out of the way

	mu       sync.Mutex // of what follows
	progress Progress
	status   bootstrap.InitializationStatus
	config   etcdconf.Document // what the last initialization went by; empty if there was none
	why      error             // why it failed; nil if it did not, or none has ended
}

// New returns a Recovery in status New, which touches nothing yet. Whoever calls it calls Close.
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

// prepare brings the data directory into a state in which etcd may open it, and returns the members of the cluster that exists and that
// it joins, empty if its configuration stands; or it says in one sentence why that cannot be, which is a *Refusal. When ctx ends it
// returns that; what it has begun is gone on with by the next run. It is for the time before etcd is opened, for whoever holds the
// volume's lock. examine validates the data directory in use.
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

// run is one run of the machine.
type run struct {
	*Recovery

	ctx         context.Context
	member      Member
	examine     func(context.Context) error
	core        statemachine.Core[Facts]
	legal       *statemachine.Legality
	ended       error     // why it is refused
	silent      int       // how often in a row the store, or a quorum of the peers, has not answered
	silentSince time.Time // since when the store was asked without an answer; zero if it has answered, or was not asked
	looked      int       // how often what the store has told of was looked for again
	lost        bool      // a run has served data from the data directory
	joins       string    // the members of the cluster that exists and that this one joins; empty if the configuration stands

	held     *os.File // what was built, locked; nil if nothing is
	life     life     // of whoever writes the generation that is to be replaced
	reason   string   // why it is in its state
	waitsFor string   // why the peers are waited for

	outcome  Outcome  // that the run comes to; without an end while nothing is brought back
	decision Decision // the last one
	learned  learned  // what it was made after

	result     error            // against the volume
	stands     datadir.Position // of the volume
	identity   archive.Identity // of the volume
	older      error            // what the store has more than a valid volume; nil if that is nothing, or not known
	asked      bool             // a restore is asked for that is not done
	refused    bool             // the data were refused by an earlier comparison with the store
	kept       inStore          // what the store has
	position   position         // of what is about to be claimed
	needs      int64            // the revision that a member of a quorum must have, by the store; 0 if it has not told
	own        string           // the id of this member's cluster, as far as volume or store have told
	etcd       string           // what etcd calls it, by the store; for members that tell no id
	storeAway  bool             // the store could not be asked for that
	whoseAsked time.Time        // when it was last
	session    string           // of this run
	lostSince  time.Time        // since when no member has told of data of use; zero if one has
	survey     peers.Survey     // what the other members have told
}

// drive takes events until an end is reached.
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
		peers.Opens(r.stands.HighestRevision, r.identity)
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

// take asks the table, and has the library's machine agree.
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
	case decision.To == Decide: // people are told of the result
		r.learned = learned{from, event, payload}
	case from == Decide:
		decision.Why = r.decision.Why
		r.report(r.learned, decision)
	default:
		r.report(learned{from, event, payload}, decision)
	}
	return decision.Do, nil
}

// learned is an event, and where it came.
type learned struct {
	from    State
	event   Event
	payload Facts
}

// decideNow has the rules decide.
func (r *run) decideNow() (Event, Facts) {
	r.decision = decide(r.core.Facts.caseOf())
	return r.decision.Result, Facts{}
}

// do works on the actions of a row, one after the other, until one ends with an event.
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

// pause waits before somebody is asked again. Peers that have answered are asked again soon: they change their list of members
// one after the other.
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

// work is what the actions do. An empty event means that the next action follows.
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

// broke is the event of what could not be done.
func broke(err error) (Event, Facts) { return Broke, Facts{Err: err} }

// next is the event of an action that is followed by the next one.
func next(err error) (Event, Facts) {
	if err != nil {
		return broke(err)
	}
	return "", Facts{}
}

const (
	firstPause   = 1500 * time.Millisecond
	longestPause = 23 * time.Second
	moment       = 300 * time.Millisecond // before somebody is asked again who has answered
)

// comparing is how long valid data wait at the most for a store that they are compared with.
const comparing = 10 * time.Second

// settling is how long a cluster whose volumes are all without data waits for those that are mounted late.
const settling = 10 * time.Second

// settled tells whether no member has had data of use for so long.
func (r *run) settled() bool {
	if listing := r.survey.Listing; listing != peers.Gone && listing != peers.Founding {
		r.lostSince = time.Time{}
		return false
	}
	if r.lostSince.IsZero() {
		r.lostSince = r.now()
	}
	return r.now().Sub(r.lostSince) >= r.lateMounts
}

// beforeServing bounds a question to the store: where valid data wait for the answer, by what is left of that time.
func (r *run) beforeServing(most time.Duration) (context.Context, context.CancelFunc) {
	if r.silentSince.IsZero() {
		r.silentSince = r.now()
	}
	if facts := r.core.Facts; (facts.Alone || facts.Unidentified) && facts.Volume == VolumeValid && !facts.Asked && !facts.Behind {
		most = min(most, max(time.Second, r.serveAfter-r.now().Sub(r.silentSince)))
	}
	return context.WithTimeout(r.ctx, most)
}

// atMost is how long backOff waits at the most, in whole seconds: half as long again each time.
func atMost(times int) time.Duration {
	pause := firstPause
	for range min(times, 20) {
		pause = min(pause*3/2, longestPause)
	}
	return pause.Round(time.Second)
}

// backOff waits before somebody is asked again who has not answered so many times, or until ctx ends. Members that were started
// together do not all ask at the same moment.
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

// eager is how often peers are asked without a longer pause: members that start together soon find each other.
const eager = 10
