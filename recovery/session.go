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
	Config    etcdconf.Source           // source of the etcd configuration, which names the data directory
	Archive   *archive.Archive          // nil if no store is configured, in which case only the peers can replace data
	Owner     func(token string) string // returns the expected owner (NAMESPACE/NAME) for an initial-cluster-token; nil if there is no store
	Adopt     string                    // value of --adopt: ID of the cluster to adopt once, with /N to end generation N; empty if not set
	VolumeDir string                    // directory of the recovery record
	Never     bool                      // --recover=never
	Request   *Request                  // restore to perform once; nil if none is requested
	Reach     peers.Options             // settings for reaching the other members, in addition to etcd's configuration
	Validate  datadir.Validation        // validates a data directory
	// Inspect checks a fetched database before it is opened for writing; see restore.Options. Inspect may be nil.
	Inspect func(ctx context.Context, path string) error
	// Flush uploads the part of a closed database that the store lacks. Flush is nil if nothing can be uploaded.
	Flush func(ctx context.Context, dataDir string, position datadir.Position) error
	// FlushSpool uploads the segments queued on the volume and may be repeated. data and reach are the identity and
	// the highest revision of the valid data on the volume; without valid data, the identity is empty. FlushSpool
	// skips segments that end at or before reach, and segments of another cluster or generation. FlushSpool is nil if
	// no store is configured.
	FlushSpool func(ctx context.Context, data archive.Identity, reach int64) error
	SpoolDir   string // queue of segments; empty if there is none
	// Died returns the reason why etcd crashed at the last start, or "" if it did not. Died may be nil.
	Died func() string
	// Lost reports whether, according to the records on the volume, an earlier run served data from the data
	// directory. Lost may be nil.
	Lost func(dataDir string) bool
	// Ended receives the outcome of each run that had to restore something. Ended may be nil.
	Ended func(Result)

	Log zerolog.Logger
}

// A Request is a restore requested by the user.
type Request struct {
	Target archive.Target
	ID     string // ID of the restore; each ID is restored only once
}

// A Member is the member that etcd's configuration describes.
type Member struct {
	*embed.Config
	DataDir  string
	PeerURLs types.URLs    // advertised peer URLs
	Alone    bool          // whether initial-cluster names no other member
	Members  types.URLsMap // members in initial-cluster
	Peers    Peers         // the other members; nil if the configuration lists none
}

// Peers queries the other members of the cluster and changes their member list. Package peers implements it.
type Peers interface {
	// Query asks the other members how they list this member.
	Query(ctx context.Context, self peers.Self) peers.Survey
	// Publish reports the state of this member to the other members, as Query does.
	Publish(self peers.Self)
	// Remove removes this member's old identity from the cluster and may be repeated.
	Remove(ctx context.Context, survey *peers.Survey) error
	// Add adds this member to the cluster as a learner and may be repeated.
	Add(ctx context.Context, survey *peers.Survey) error
}

// An environment holds everything that the runs of a Recovery share. Tests replace parts of it.
type environment struct {
	options    Options
	progress   atomic.Pointer[Progress]              // nil before the first run
	checkRoom  func(seed.Seed, restore.Source) error // checks the free space
	now        func() time.Time
	wait       func(ctx context.Context, times int) // waits between two requests to the store or the peers
	lateMounts time.Duration                        // how long a multi-member cluster without data waits for late mounts
	serveAfter time.Duration                        // how long a member with valid data waits for an unreachable store
	idleTime   time.Duration                        // how long a generation must be idle before it is replaced
	interrupt  func(Action) error                   // test hook that is called before an action; an error ends the run

	logged   bool // whether it was already logged that the requested restore was done earlier
	replaced bool // whether the data that crashed etcd at the last start has been moved
}

// A session holds the values shared by the parts of a run.
type session struct {
	*environment
	ctx       context.Context
	member    Member
	facts     *Facts       // facts of the state machine
	survey    peers.Survey // last responses from the other members
	id        string       // ID of this run
	requested bool         // whether a requested restore is still pending
	retries   int          // consecutive requests without a response from the store or from a quorum of the peers
	searches  int          // number of searches for a missing object
}

func (s *session) isValid() bool { return s.facts.Volume == VolumeValid }

// owner returns the owner of this member's cluster.
func (s *session) owner() string { return s.options.Owner(s.member.InitialClusterToken) }

const (
	storeTimeout      = 2 * time.Minute  // timeout of a request to the store, an upload from the volume, or a claim
	shortStoreTimeout = 10 * time.Second // timeout of a request to the store that is allowed to fail

	firstPause    = 1500 * time.Millisecond
	longestPause  = 23 * time.Second
	answeredPause = 300 * time.Millisecond // pause between the first requests to the peers

	compareTimeout = 10 * time.Second // how long valid data waits to be compared with the store
	mountTimeout   = 10 * time.Second // how long a cluster of empty volumes waits for late mounts
)

// longestWait returns the maximum pause of backOff, rounded to a second. The maximum grows by half with each failed
// attempt.
func longestWait(times int) time.Duration {
	pause := firstPause
	for range min(times, 20) {
		pause = min(pause*3/2, longestPause)
	}
	return pause.Round(time.Second)
}

// backOff waits before the next attempt, depending on the number of failed attempts, or until ctx is done. Pauses
// are randomized so that members that start together do not send requests at the same time.
func backOff(ctx context.Context, times int) {
	pause := answeredPause
	if times > 0 {
		pause = longestWait(times)/3 + rand.N(longestWait(times)*2/3)
	}
	_ = clock.Sleep(ctx, pause)
}

// Progress describes a run to the user.
type Progress struct {
	State      State // empty before the first run
	Since      time.Time
	Reason     string  // reason for the state, as a sentence
	Uncompared bool    // whether etcd may open the data even though the store may have newer data
	Warning    bool    // whether Reason is only a warning and etcd may open the data
	Loss       string  // how many revisions are lost or undone, in words; empty if nothing is restored
	Bytes      int64   // bytes rebuilt so far
	Of         int64   // expected total of Bytes; 0 if unknown
	Rate       float64 // bytes per second
}

// Left estimates the remaining time of the build at the current rate. The result is 0 if it is unknown.
func (p Progress) Left() time.Duration {
	if p.Rate <= 0 || p.Of <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Of-p.Bytes) / p.Rate * float64(time.Second))
}

// Restores reports whether the run is restoring or has restored something.
func (p Progress) Restores() bool { return p.Loss != "" }

// Progress returns the progress of the current or last run. Progress is safe for concurrent use.
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

// A Result describes the outcome of a run that had to restore something.
type Result struct {
	Cause string // a VolumeState, Wanted or Unfinished
	Ended string // Restored, Rejoined or Denied
	Lost  int64  // number of known revisions that were lost, excluding those that the user chose to undo
}

// Outcomes, and causes that are not a VolumeState.
const (
	Restored   = "restored"   // restored from the store
	Rejoined   = "rejoined"   // data replaced with that of the other members
	Denied     = "refused"    // refused to start until the user acts
	Wanted     = "requested"  // requested with --restore-to
	Unfinished = "unfinished" // completed an interrupted run
)

const (
	recordFile   = "recovery.json"
	recordFormat = 1
	maxRecord    = 64 << 10 // maximum size of the file in bytes
	maxDone      = 100      // maximum number of restore IDs on the volume; the store keeps all of them
)

// A journal is the record that recovery keeps on the volume.
type journal struct {
	Format int           `json:"format"`
	Claim  *restoreClaim `json:"claim,omitempty"` // restore that may have been claimed but is not installed yet
	Done   []string      `json:"done,omitempty"`  // IDs of completed restores, oldest first

	Refused *mismatch `json:"refused,omitempty"` // set if a comparison with the store rejected the current data
}

// A restoreClaim contains everything that a later run needs to complete a restore.
type restoreClaim struct {
	Generation  archive.Generation `json:"generation"`    // generation to create
	Reservation int64              `json:"reservation"`   // revision to reserve
	Head        format.Position    `json:"head_position"` // end of the previous generation in the store; zero if it was empty
	Aside       string             `json:"aside"`         // new path of the old data directory
	DataDir     string             `json:"data_dir"`      // directory to replace
	At          time.Time          `json:"at"`
}

// A mismatch records that a comparison with the store rejected the data. Rejected data must not be served before
// another comparison, even if the store becomes unreachable.
type mismatch struct {
	DataDir string    `json:"data_dir"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
	First   int64     `json:"first,omitempty"` // first compared revision if rows differ from the store's; otherwise 0
	Last    int64     `json:"last,omitempty"`  // last compared revision if the rows differ; otherwise 0
}

// RecordMismatch records on the volume that the data in a directory does not match the store, for example if the
// generation of a running etcd has ended. RecordMismatch must be called after etcd is closed.
func (e *environment) RecordMismatch(dataDir string, why error) error {
	refused := &mismatch{DataDir: seed.ResolvePath(dataDir), Why: why.Error(), At: e.now().UTC()}
	if rows, ok := errors.AsType[*relation.RowsError](why); ok {
		refused.First, refused.Last = rows.First, rows.Last
	}
	return e.updateRecord(func(r *journal) { r.Refused = refused })
}

// readRecord returns the record, or an empty one if there is none. If the record is unreadable, the error contains
// the way out.
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
		err = fmt.Errorf("unsupported format %d (supported: %d)", r.Format, recordFormat)
	}
	if err != nil {
		return journal{}, fmt.Errorf("cannot read the recovery record %s: %w; move the file aside to start recovery from scratch", path, err)
	}
	return r, nil
}

// updateRecord applies a change to the record on the volume. An unchanged record is not written, because a failed
// write on a full volume would keep recovery from removing the data that it has built there.
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
		return fmt.Errorf("cannot write the recovery record %s: %w", path, err)
	}
	return nil
}

// errClaimLost reports that the built data must not be installed, because the store or the peers have changed since.
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
