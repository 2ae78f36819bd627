package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/internal/clock"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
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
	Ended func(Result)

	Log zerolog.Logger
}

// A Request is a restore that the user wants.
type Request struct {
	Target archive.Target
	ID     string // it is done once
}

// A Member describes the member, from etcd's configuration.
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

// An environment is what a Recovery has for all its runs. Tests replace parts of it.
type environment struct {
	options    Options
	progress   tracker
	checkRoom  func(seed.Seed, restore.Source) error // checks the free space
	now        func() time.Time
	wait       func(ctx context.Context, times int) // between two requests to the store or the peers
	lateMounts time.Duration                        // how long no member must have usable data before a cluster of several is restored
	serveAfter time.Duration                        // how long valid data wait for a store that does not answer
	idleTime   time.Duration                        // how long a generation must not be extended before it is replaced
	interrupt  func(Action) error                   // for tests: an error ends the run before an action

	logged   bool // it was logged that the requested restore was done before
	replaced bool // the data that the last start crashed on were moved
}

// A session is what the parts of one run share.
type session struct {
	*environment
	ctx       context.Context
	member    Member
	facts     *Facts       // of the machine
	survey    peers.Survey // last answers of the other members
	id        string       // of this run
	requested bool         // a restore is requested that was not done
	retries   int          // requests in a row without an answer from the store, or from a quorum of the peers
	searches  int          // how often a missing object was searched again
}

func (s *session) isValid() bool { return s.facts.Volume == VolumeValid }

// owner returns the owner's name of this member's cluster.
func (s *session) owner() string { return s.options.Owner(s.member.Token) }

const (
	patience = 2 * time.Minute  // for a request to the store, an upload of what only the volume has, or a claim
	brief    = 10 * time.Second // for a request to the store that may stay unanswered

	firstPause   = 1500 * time.Millisecond
	longestPause = 23 * time.Second
	moment       = 300 * time.Millisecond // before a request is repeated that was answered

	comparing = 10 * time.Second // how long valid data wait for the store that they are compared with
	settling  = 10 * time.Second // how long a cluster whose volumes are all empty waits for volumes that are mounted late
)

// longestWait returns the longest pause of backOff in whole seconds, which grows by half each time.
func longestWait(times int) time.Duration {
	pause := firstPause
	for range min(times, 20) {
		pause = min(pause*3/2, longestPause)
	}
	return pause.Round(time.Second)
}

// backOff waits before a request is repeated that has failed the given number of times, or until ctx is done. Members
// that were started together must not all ask at the same moment.
func backOff(ctx context.Context, times int) {
	pause := moment
	if times > 0 {
		pause = longestWait(times)/3 + rand.N(longestWait(times)*2/3)
	}
	_ = clock.Sleep(ctx, pause)
}

// Progress describes a run for users.
type Progress struct {
	State      State // empty before the first run
	Since      time.Time
	Reason     string  // why it is in that state: a sentence
	Uncompared bool    // etcd may open the data, and it is unknown whether the store has more
	Warning    bool    // etcd may open the data, and Reason is a warning
	Loss       string  // what is lost or undone, in numbers; empty if nothing is restored
	Bytes      int64   // bytes that were rebuilt
	Of         int64   // expected total of Bytes; 0 if unknown
	Rate       float64 // bytes per second
}

// Left returns how long building will take at the present rate; 0 if unknown.
func (p Progress) Left() time.Duration {
	if p.Rate <= 0 || p.Of <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Of-p.Bytes) / p.Rate * float64(time.Second))
}

// Restores reports whether a run restores something, or has.
func (p Progress) Restores() bool { return p.Loss != "" }

// A tracker holds the progress of the present or the last run. Its methods may be called from any goroutine.
type tracker struct {
	mu  sync.Mutex
	now Progress
}

func (t *tracker) current() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

func (t *tracker) change(change func(*Progress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.now)
}

// A Result is the end of a run that had something to restore.
type Result struct {
	Cause string // the state of the volume, Wanted or Unfinished
	Ended string // Restored, Rejoined or Denied
	Lost  int64  // revisions that are known to be lost, without those that the user has undone
}

// The outcomes, and the causes that are not states of the volume.
const (
	Restored   = "restored"   // from the store
	Rejoined   = "rejoined"   // with the data of the other members
	Denied     = "refused"    // the user has to act
	Wanted     = "requested"  // by --restore-to
	Unfinished = "unfinished" // an interrupted run was completed
)

const (
	recordFile   = "recovery.json"
	recordFormat = 1
	maxRecord    = 64 << 10 // maximum bytes of the file
	maxDone      = 100      // IDs of restores; the store has all
)

// A journal is what recovery stores durably on the volume.
type journal struct {
	Format int           `json:"format"`
	Claim  *restoreClaim `json:"claim,omitempty"` // what may be claimed and is not installed yet
	Done   []string      `json:"done,omitempty"`  // IDs of restores that were done, the newest last

	Refused *mismatch `json:"refused,omitempty"` // of the data that are there, by a comparison with the store
}

// A restoreClaim describes a restore, so that a later run can complete it.
type restoreClaim struct {
	Generation  archive.Generation `json:"generation"`    // to be claimed, as it is written
	Reservation int64              `json:"reservation"`   // the revision
	Head        format.Position    `json:"head_position"` // where the generation before ended in the store; zero if it had nothing
	Aside       string             `json:"aside"`         // where the old data directory goes
	DataDir     string             `json:"data_dir"`      // that is replaced
	At          time.Time          `json:"at"`
}

// A mismatch records that data were compared with the store and refused. They are compared again before they are
// served, even if the store cannot be reached then.
type mismatch struct {
	DataDir string    `json:"data_dir"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
	First   int64     `json:"first,omitempty"` // revision that was compared, if rows differ
	Last    int64     `json:"last,omitempty"`  // the last of these
}

// RecordMismatch stores on the volume that the data in a directory are not those of the store, for instance because
// the generation of a running etcd has ended. Call it once etcd is closed.
func (e *environment) RecordMismatch(dataDir string, why error) error {
	refused := &mismatch{DataDir: seed.ResolvePath(dataDir), Why: why.Error(), At: e.now().UTC()}
	if rows, ok := errors.AsType[*relation.RowsError](why); ok {
		refused.First, refused.Last = rows.First, rows.Last
	}
	return e.updateRecord(func(r *journal) { r.Refused = refused })
}

// readRecord returns an empty record if there is none. If it cannot be read, the error names the way out.
func (e *environment) readRecord() (r journal, err error) {
	path := filepath.Join(e.options.VolumeDir, recordFile)
	content, err := disk.ReadHere(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return journal{Format: recordFormat}, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err == nil && r.Format != recordFormat {
		err = fmt.Errorf("it has format %d, and this program reads %d", r.Format, recordFormat)
	}
	if err != nil {
		return journal{}, fmt.Errorf("cannot read %s, the record of recovery: %w; move the file away to start recovery again", path, err)
	}
	return r, nil
}

// updateRecord writes nothing if nothing changes: a full volume must not keep what was built from being removed.
func (e *environment) updateRecord(change func(*journal)) error {
	before, err := e.readRecord()
	r := before
	if change(&r); err != nil || reflect.DeepEqual(before, r) {
		return err
	}
	path := filepath.Join(e.options.VolumeDir, recordFile)
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = disk.Replace(path, append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write %s, the record of recovery: %w", path, err)
	}
	return nil
}

// errClaimLost reports that what was built is outdated.
var errClaimLost = errors.New("the claim is lost")

func lostClaim(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errClaimLost, fmt.Errorf(format, args...))
}

// addDone adds the ID of a restore that was done.
func (r *journal) addDone(id string) {
	if id != "" && !slices.Contains(r.Done, id) {
		r.Done = append(r.Done, id)
		r.Done = r.Done[max(0, len(r.Done)-maxDone):]
	}
}
