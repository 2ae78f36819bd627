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
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"

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
	Config    etcdconf.Source           // source of etcd's configuration, which names the data directory
	Archive   *archive.Archive          // nil without a store: then only peers can provide other data
	Owner     func(token string) string // returns the store's expected owner, NAMESPACE/NAME, for an initial-cluster-token; nil without a store
	Adopt     string                    // value of --adopt: the ID of the cluster to adopt once, with /N to end generation N; empty if none
	VolumeDir string                    // directory of the record
	Never     bool                      // --recover=never
	Request   *Request                  // restore to perform once; nil if none is requested
	Reach     peers.Options             // how to reach the other members, in addition to etcd's configuration
	Validate  datadir.Validation        // validates a data directory
	// Inspect checks a fetched database before it is opened for changes; see restore.Options. It may be nil.
	Inspect func(ctx context.Context, path string) error
	// Flush uploads the part of a closed etcd's database that the store lacks. It is nil if that is impossible.
	Flush func(ctx context.Context, dataDir string, stands datadir.Position) error
	// FlushSpool uploads the segments queued on the volume, and may be repeated. It skips segments that the data
	// already covers: those of the same identity up to revision reach. An empty identity means that there is no data.
	// It is nil without a store.
	FlushSpool func(ctx context.Context, data archive.Identity, reach int64) error
	SpoolDir   string // queue of segments; empty if there is none
	// Died returns the reason for etcd's crash at the last start, or "" if it did not crash. It may be nil.
	Died func() string
	// Lost reports whether an earlier run served data from the data directory, according to the records on the
	// volume. It may be nil.
	Lost func(dataDir string) bool
	// Ended receives the outcome of each run that had something to restore. It may be nil.
	Ended func(Result)

	Log zerolog.Logger
}

// A Request is a restore that the user requests.
type Request struct {
	Target archive.Target
	ID     string // identifies the restore, which is performed only once
}

// A Member is the member that etcd's configuration describes.
type Member struct {
	*embed.Config
	DataDir  string
	PeerURLs types.URLs    // advertised
	Alone    bool          // initial-cluster names no other member
	Members  types.URLsMap // from initial-cluster
	Peers    Peers         // the other members; nil if the configuration lists none
}

// Peers are the other members of the cluster. Package peers asks them over the network.
type Peers interface {
	// Query asks the other members how they list this one.
	Query(ctx context.Context, self peers.Self) peers.Survey
	// Publish reports the state of this member to the others. Query does so as well.
	Publish(self peers.Self)
	// Remove removes this member's old identity from the cluster. It may be repeated.
	Remove(ctx context.Context, survey *peers.Survey) error
	// Add adds this member to the cluster as a learner. It may be repeated.
	Add(ctx context.Context, survey *peers.Survey) error
}

// An environment holds what all runs of a Recovery share. Tests replace parts of it.
type environment struct {
	options    Options
	progress   atomic.Pointer[Progress]              // nil before the first run
	checkRoom  func(seed.Seed, restore.Source) error // checks the free space
	now        func() time.Time
	wait       func(ctx context.Context, times int) // waits between two requests to the store or the peers
	lateMounts time.Duration                        // how long a lost cluster of several waits for volumes
	serveAfter time.Duration                        // how long a member with valid data waits for an unreachable store
	idleTime   time.Duration                        // how long a generation must be idle before it is replaced
	interrupt  func(Action) error                   // for tests: an error ends the run before an action

	logged   bool // whether it was logged that the requested restore is already done
	replaced bool // whether the data that crashed etcd at the last start was moved
}

// A session holds what the parts of one run share.
type session struct {
	*environment
	ctx       context.Context
	member    Member
	facts     *Facts       // of the machine
	survey    peers.Survey // last answers from the other members
	id        string       // identifies this run
	requested bool         // a restore is requested and not done yet
	retries   int          // consecutive requests without an answer from the store or a quorum of the peers
	searches  int          // number of searches for a missing object
}

func (s *session) isValid() bool { return s.facts.Volume == VolumeValid }

// owner returns the owner name of this member's cluster.
func (s *session) owner() string { return s.options.Owner(s.member.InitialClusterToken) }

const (
	patience = 2 * time.Minute  // limits a request to the store, an upload of the volume's data, or a claim
	brief    = 10 * time.Second // limits a request to the store that may stay unanswered

	firstPause   = 1500 * time.Millisecond
	longestPause = 23 * time.Second
	moment       = 300 * time.Millisecond // wait before repeating a request that was answered

	comparing = 10 * time.Second // how long valid data waits to be compared with the store
	settling  = 10 * time.Second // how long a cluster whose volumes are all empty waits for late mounts
)

// longestWait returns the longest pause of backOff in whole seconds. It grows by half with each attempt.
func longestWait(times int) time.Duration {
	pause := firstPause
	for range min(times, 20) {
		pause = min(pause*3/2, longestPause)
	}
	return pause.Round(time.Second)
}

// backOff waits before the next attempt, given the number of failed attempts, or until ctx is done. Pauses are
// randomized so that members that start together do not all send their requests at the same moment.
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
	Reason     string  // why the run is in that state, as a sentence
	Uncompared bool    // etcd may open the data, but it is unknown whether the store has newer data
	Warning    bool    // etcd may open the data, and Reason is a warning
	Loss       string  // describes in numbers what is lost or undone; empty if nothing is restored
	Bytes      int64   // bytes rebuilt so far
	Of         int64   // expected total of Bytes; 0 if unknown
	Rate       float64 // bytes per second
}

// Left returns the estimated remaining time of the build at the current rate; 0 if unknown.
func (p Progress) Left() time.Duration {
	if p.Rate <= 0 || p.Of <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Of-p.Bytes) / p.Rate * float64(time.Second))
}

// Restores reports whether the run is restoring or has restored something.
func (p Progress) Restores() bool { return p.Loss != "" }

// Progress returns the progress of the current or last run. It may be called from any goroutine.
func (e *environment) Progress() Progress {
	if now := e.progress.Load(); now != nil {
		return *now
	}
	return Progress{}
}

// changeProgress must not be called concurrently.
func (e *environment) changeProgress(change func(*Progress)) {
	now := e.Progress()
	change(&now)
	e.progress.Store(&now)
}

// A Result describes the end of a run that had something to restore.
type Result struct {
	Cause string // the state of the volume, Wanted or Unfinished
	Ended string // Restored, Rejoined or Denied
	Lost  int64  // known lost revisions, not counting those that the user chose to undo
}

// Outcomes, and causes that are not states of the volume.
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
	maxDone      = 100      // number of restore IDs; the store has them all
)

// A journal is the record that recovery stores durably on the volume.
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

// A mismatch records that the data was compared with the store and rejected. It must be compared again before it is
// served, even if the store is unreachable by then.
type mismatch struct {
	DataDir string    `json:"data_dir"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
	First   int64     `json:"first,omitempty"` // revision that was compared, if rows differ
	Last    int64     `json:"last,omitempty"`  // the last of these
}

// RecordMismatch records on the volume that a directory's data does not match the store, for example because the
// generation of a running etcd has ended. It must be called after etcd is closed.
func (e *environment) RecordMismatch(dataDir string, why error) error {
	refused := &mismatch{DataDir: seed.ResolvePath(dataDir), Why: why.Error(), At: e.now().UTC()}
	if rows, ok := errors.AsType[*relation.RowsError](why); ok {
		refused.First, refused.Last = rows.First, rows.Last
	}
	return e.updateRecord(func(r *journal) { r.Refused = refused })
}

// readRecord returns the record, or an empty one if there is none. The error for an unreadable record contains the
// way out.
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

// updateRecord writes the record only if something changes, so that a full volume does not prevent the removal of
// built data.
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

// errClaimLost reports that the restored data is outdated.
var errClaimLost = errors.New("the claim is lost")

func lostClaim(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errClaimLost, fmt.Errorf(format, args...))
}

// addDone adds the ID of a completed restore.
func (r *journal) addDone(id string) {
	if id != "" && !slices.Contains(r.Done, id) {
		r.Done = append(r.Done, id)
		r.Done = r.Done[max(0, len(r.Done)-maxDone):]
	}
}
