// Package status is all that the wrapper says about itself, in one JSON document: the schema of GET /lifecycle, and the
// handler that serves and streams it. `etcd-wrapper status`, the page and the metrics are made from the same document,
// so that they cannot disagree.
//
// The package knows neither the lifecycle nor etcd: the command fills the document in.
package status

import (
	"reflect"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/internal/printable"
)

// Document is everything there is to know about a run at one moment. Its JSON form is a documented interface: fields are
// added, but not renamed. It holds no secrets; texts are those of the log.
type Document struct {
	Headline         Headline          `json:"headline"` // what to read first
	State            string            `json:"state"`
	Since            time.Time         `json:"since"`                // when the state was entered
	Reason           string            `json:"reason"`               // a sentence: why this state
	Ready            bool              `json:"ready"`                // what /readyz says
	ReadySince       time.Time         `json:"ready_since"`          // since when Ready is what it is
	Attempt          int               `json:"attempt"`              // how often the state was entered the same way in a row
	NextRetry        time.Time         `json:"next_retry,omitzero"`  // when the state's timer runs out, if it has one
	LastError        *Error            `json:"last_error,omitempty"` // the latest; it may be over: see Ended
	Validation       *Validation       `json:"validation,omitempty"` // once it was asked for
	SidecarStatus    string            `json:"sidecar_status,omitempty"`
	Standalone       bool              `json:"standalone,omitempty"` // there is no sidecar
	Pod              string            `json:"pod"`                  // or whatever the host is called
	MemberID         string            `json:"member_id,omitempty"`  // etcd's, hexadecimal, once etcd is ready
	Member                             // once etcd is opened
	Started          time.Time         `json:"started"`   // when the process started
	LastExit         string            `json:"last_exit"` // how the run before this one ended, one of LastExits
	Versions         Versions          `json:"versions"`
	Checks           []Check           `json:"checks"`                    // of /readyz, without the lifecycle's own
	DataVersion      *DataVersion      `json:"data_version,omitempty"`    // once etcd is ready
	Maintenance      *Maintenance      `json:"maintenance,omitempty"`     // once etcd is opened
	Backup           *facts.Backups    `json:"backup,omitempty"`          // with a store for backups
	Recovery         *Recovery         `json:"recovery,omitempty"`        // while data come back from the store, after they did, or if they cannot
	Leases           []Lease           `json:"leases,omitempty"`          // with --leases, once there is something to write into them
	ConfigWarnings   []string          `json:"config_warnings,omitempty"` // of etcd's configuration, sentences: what has no effect, or perhaps another one than was meant
	Certificates     []Certificate     `json:"certificates,omitempty"`    // those in use, once they are known
	Transitions      []Transition      `json:"transitions"`               // oldest first, at most 64; two that alternate are counted, not repeated
	TransitionCounts []TransitionCount `json:"transition_counts"`         // every way that was gone since the process started

	Trends   *Trends         `json:"trends,omitempty"`   // once etcd has run for seconds
	Timeline []TimelineEvent `json:"timeline,omitempty"` // oldest first, at most 10 of a kind

	PhaseSince     time.Time `json:"phase_since"`                // when the phase began, which polling does not begin anew
	LastExitReason string    `json:"last_exit_reason,omitempty"` // of LastExit, where it is known
}

// Member is a member's cluster as the member sees it, and its own database. IDs are hexadecimal.
type Member struct {
	Name       string `json:"member_name,omitempty"`
	ClusterID  string `json:"cluster_id,omitempty"`
	Leader     string `json:"leader,omitempty"` // its ID; empty if none is known
	Term       uint64 `json:"term,omitempty"`
	Revision   int64  `json:"revision,omitempty"`  // the newest of its database
	DBSize     int64  `json:"db_size,omitempty"`   // bytes of the file
	DBInUse    int64  `json:"db_in_use,omitempty"` // bytes of it that defragmentation would keep
	Quota      int64  `json:"quota,omitempty"`     // bytes that the database may have; 0 if there is no limit
	VolumeFree int64  `json:"volume_free,omitempty"`
	VolumeSize int64  `json:"volume_size,omitempty"` // bytes of the volume that the database lies on; Free are left of it
	NewCluster bool   `json:"new_cluster,omitempty"` // the cluster began in this run, on an empty data directory
	Peers      []Peer `json:"peers,omitempty"`       // all members of the cluster, this one included, by name
}

// Peer is a member of the cluster.
type Peer struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"` // empty until the member has published it
	URLs    []string `json:"urls"`
	Active  bool     `json:"active"` // this member has a connection to it
	Leader  bool     `json:"leader"`
	Learner bool     `json:"learner"` // it has no vote yet
}

// What LastExit is, beside the words of the exit record.
const (
	ExitCrash   = "crash"
	ExitUnknown = "unknown" // somebody else ran, or a version that left no note
	ExitFailed  = "failed"  // it ended in order, with an exit status that is not 0
	ExitKilled  = "killed"  // it ended without a word
	ExitNone    = "none"    // there was none: the volume is new
)

// LastExits returns everything that LastExit can be.
func LastExits() []string {
	return []string{"terminated", "interrupt", ExitCrash, ExitFailed, ExitKilled, ExitNone, ExitUnknown}
}

// Error is something that went wrong.
type Error struct {
	At    time.Time `json:"at"`             // the latest time
	Since time.Time `json:"since"`          // the first time in a row
	Count int       `json:"count"`          // how often in a row
	Ended time.Time `json:"ended,omitzero"` // when the run got further; absent while it lasts
	// Class is one of volume, sidecar, validation, configuration, certificate, timeout, server, record, etcd, crash.
	Class   string `json:"class"`
	Message string `json:"message"`
}

// Validation is how the data directory is validated in this run.
type Validation struct {
	Mode   string `json:"mode"` // sanity or full
	Reason string `json:"reason"`
}

// Versions are those of the programs in the process.
type Versions struct {
	Wrapper string `json:"wrapper"`
	Etcd    string `json:"etcd"`
	Go      string `json:"go"`
}

// Check is the status of one part of the member, by name.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, degraded or failed
	Reason string `json:"reason,omitempty"`
}

// DataVersion is how far the data are kept at a version that an older etcd can read.
type DataVersion struct {
	Wanted   string `json:"wanted"`   // 3.5 or 3.6
	Cluster  string `json:"cluster"`  // 3.5, for example, or unknown
	Storage  string `json:"storage"`  // of this member's database, likewise
	Phase    string `json:"phase"`    // waiting, lowering, holding, letting go, rising, kept or not changed
	Reason   string `json:"reason"`   // of the phase: a clause, for people
	Readable bool   `json:"readable"` // etcd of the wanted version can read the data
}

// Certificate is a certificate file in use.
type Certificate struct {
	Name      string    `json:"name"` // what it is for: etcd_server, etcd_server_ca, etcd_peer, etcd_peer_ca, etcd_client, sidecar_ca, wrapper_server
	Path      string    `json:"path"`
	NotBefore time.Time `json:"not_before"` // the latest in the file
	NotAfter  time.Time `json:"not_after"`  // the earliest in the file
}

// expiryWarning is how long before its end a certificate is worth a warning.
const expiryWarning = 72 * time.Hour

// ExpiresSoon reports whether a certificate is worth a warning: it ends within 72 hours of now, or has ended.
func (c Certificate) ExpiresSoon(now time.Time) bool { return c.NotAfter.Sub(now) <= expiryWarning }

// Transition is one step of the state machine.
type Transition struct {
	At           time.Time `json:"at"`
	From         string    `json:"from"`
	Event        string    `json:"event"`
	Guard        string    `json:"guard,omitempty"`
	To           string    `json:"to"`
	Reason       string    `json:"reason"`
	Count        int       `json:"count"`         // how often it was taken in the current back and forth
	AfterSeconds float64   `json:"after_seconds"` // seconds that From had lasted
}

// Edge adds up how often an event led from one state to another, for each guard that held.
type TransitionCount struct {
	From    string    `json:"from"`
	Event   string    `json:"event"`
	Guard   string    `json:"guard,omitempty"`
	To      string    `json:"to"`
	Count   int       `json:"count"`
	Last    time.Time `json:"last"`
	Seconds float64   `json:"seconds"` // seconds in From, by visits that ended this way
}

// Recovery is how far data are that come back from the store, or why they do not.
type Recovery struct {
	State            string    `json:"state"` // of the machine of --dump-fsm --machine=recovery
	Since            time.Time `json:"since"`
	Reason           string    `json:"reason"`                      // why it is in that state: a sentence
	Loss             string    `json:"loss,omitempty"`              // what comes back and what does not, in numbers; empty if nothing is restored
	RestoredBytes    int64     `json:"restored_bytes,omitempty"`    // rebuilt so far
	TotalBytes       int64     `json:"total_bytes,omitempty"`       // about how many that will be
	BytesPerSecond   float64   `json:"bytes_per_second,omitempty"`  // bytes a second
	RemainingSeconds float64   `json:"remaining_seconds,omitempty"` // that building will still take
}

// Maintenance is how the member's database is kept small.
type Maintenance struct {
	Phase               string           `json:"phase"`            // idle, waiting, handing off, running or catching up
	Since               time.Time        `json:"since"`            // when the phase began
	Reason              string           `json:"reason,omitempty"` // of the phase: a clause, for people
	ExpectedSeconds     float64          `json:"expected_seconds"` // seconds that a defragmentation would take now, or is expected to take
	Progress            float64          `json:"progress"`         // of one that runs, from 0 to 1
	Readers             []DatabaseReader `json:"readers,omitempty"`
	LastDefragmentation *Defragmentation `json:"last_defragmentation,omitempty"` // since the process started
	Completed           int              `json:"completed"`                      // defragmentations since the process started
	Failed              int              `json:"failed"`                         // those that were asked for or begun, and came to nothing
	FreedBytes          int64            `json:"freed_bytes"`                    // bytes that were given back to the volume
	NoSpaceDisarmed     int              `json:"nospace_disarmed"`               // how often the alarm NOSPACE was lifted
}

// DatabaseReader is somebody who reads the whole database, beside whom it is not defragmented.
type DatabaseReader struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since"`
}

// Defragmentation is how one ended.
type Defragmentation struct {
	At          time.Time `json:"at"`
	Seconds     float64   `json:"seconds"`      // seconds in which the database stood still
	Origin      string    `json:"origin"`       // who wanted it: threshold, command or client
	BytesBefore int64     `json:"bytes_before"` // bytes of the file
	BytesAfter  int64     `json:"bytes_after"`
	Error       string    `json:"error,omitempty"` // why it came to nothing
}

// Busy reports whether a defragmentation is under way.
func (u *Maintenance) Busy() bool { return u != nil && u.Phase != "idle" && u.Phase != "waiting" }

// Lease is a Kubernetes lease that the member renews.
type Lease struct {
	Kind    string        `json:"kind"`              // member, full_snapshot or delta_snapshot
	Name    string        `json:"name"`              // of the lease, in the pod's namespace
	Holder  string        `json:"holder"`            // what it says; empty until it was renewed
	Renewed time.Time     `json:"renewed,omitzero"`  // when it was renewed last, or found to be right
	Problem *LeaseProblem `json:"problem,omitempty"` // while it lasts
}

// LeaseTrouble is why a lease is not renewed.
type LeaseProblem struct {
	Since     time.Time `json:"since"`
	Count     int       `json:"count"` // in a row
	Message   string    `json:"message"`
	NextRetry time.Time `json:"next_retry"`
}

// printable returns the document with every text made fit for a terminal, since it may quote texts of unknown origin. What is shared with
// others is left alone.
func (d Document) printable() Document {
	return cleaned(reflect.ValueOf(d)).Interface().(Document)
}

// cleaned is a copy whose texts are printable, however deep they lie.
func cleaned(of reflect.Value) reflect.Value {
	clean := reflect.New(of.Type()).Elem()
	clean.Set(of)
	switch of.Kind() {
	case reflect.String:
		clean.SetString(printable.Line(of.String()))
	case reflect.Pointer:
		if !of.IsNil() {
			clean.Set(cleaned(of.Elem()).Addr())
		}
	case reflect.Slice:
		if of.Type().Elem().Kind() == reflect.Float32 { // no text lies there
			return of
		}
		if !of.IsNil() {
			clean.Set(reflect.MakeSlice(of.Type(), of.Len(), of.Len()))
		}
		for i := range of.Len() {
			clean.Index(i).Set(cleaned(of.Index(i)))
		}
	case reflect.Struct:
		for i := range of.NumField() {
			if field := clean.Field(i); field.CanSet() { // not those of a time
				field.Set(cleaned(of.Field(i)))
			}
		}
	}
	return clean
}
