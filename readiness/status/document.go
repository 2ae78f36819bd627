// Package status defines the status document of the wrapper and serves it as GET /lifecycle, once or as a stream of
// changes. The status command, the page and the metrics use the same document, so that they cannot disagree.
//
// The headline (headline.go) is derived from the rest of the document. The package imports neither the lifecycle nor
// etcd: package report fills in the document.
package status

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/statemachine"
)

// A Document describes a run at one moment. Its JSON form is a documented interface: fields are added, but never
// renamed. It contains no secrets; its messages are those of the log.
type Document struct {
	Headline         Headline           `json:"headline"` // the summary
	State            string             `json:"state"`
	Since            time.Time          `json:"since"`                // time at which the state was entered
	Reason           string             `json:"reason"`               // why the state was entered, as a sentence
	Ready            bool               `json:"ready"`                // as /readyz reports it
	ReadySince       time.Time          `json:"ready_since"`          // time at which Ready last changed
	Attempt          int                `json:"attempt"`              // number of consecutive times the state was entered in the same way
	NextRetry        time.Time          `json:"next_retry,omitzero"`  // time at which the state's timer fires, if it is set
	LastError        *Error             `json:"last_error,omitempty"` // latest error; Ended is set once it is resolved
	Validation       *Validation        `json:"validation,omitempty"` // absent until an initialization was requested
	SidecarStatus    string             `json:"sidecar_status,omitempty"`
	Standalone       bool               `json:"standalone,omitempty"` // there is no sidecar
	Pod              string             `json:"pod"`                  // name of the pod, or of the host
	MemberID         string             `json:"member_id,omitempty"`  // etcd member ID, hexadecimal; absent until etcd is ready
	state.Member                        // set once etcd is opened
	Started          time.Time          `json:"started"`   // start of the process
	LastExit         string             `json:"last_exit"` // how the previous run ended, one of ExitClasses
	Versions         Versions           `json:"versions"`
	Checks           []Check            `json:"checks"`                    // checks of /readyz, except for the lifecycle's own
	DataVersion      *state.DataVersion `json:"data_version,omitempty"`    // absent until etcd is ready
	Maintenance      *state.Maintenance `json:"maintenance,omitempty"`     // absent until etcd is opened
	Backup           *facts.Backups     `json:"backup,omitempty"`          // absent without a store for backups
	Recovery         *Recovery          `json:"recovery,omitempty"`        // set during and after a recovery, or if the data cannot be recovered
	Leases           []state.Lease      `json:"leases,omitempty"`          // leases of --kubernetes=leases that have content
	ConfigWarnings   []string           `json:"config_warnings,omitempty"` // ineffective or suspicious settings of etcd, as sentences
	Certificates     []Certificate      `json:"certificates,omitempty"`    // certificates in use, once they are known
	Transitions      []Transition       `json:"transitions"`               // oldest first, at most 64; alternating transitions are counted
	TransitionCounts []TransitionCount  `json:"transition_counts"`         // counts since the process started

	Trends   *Trends         `json:"trends,omitempty"`   // absent until etcd has run for a few seconds
	Timeline []TimelineEvent `json:"timeline,omitempty"` // oldest first, at most 10 of each kind

	PhaseSince     time.Time `json:"phase_since"`                // start of the phase; polling counts as one phase
	LastExitReason string    `json:"last_exit_reason,omitempty"` // reason for LastExit, if known
}

// Values of LastExit, in addition to those of the exit record.
const (
	ExitCrash   = "crash"
	ExitUnknown = "unknown" // another program ran, or a version that writes no note
	ExitFailed  = "failed"  // the process exited on its own with a nonzero status
	ExitKilled  = "killed"  // the process was killed
	ExitNone    = "none"    // the volume is new
)

// ExitClasses returns all values of LastExit.
func ExitClasses() []string {
	return []string{"terminated", "interrupt", ExitCrash, ExitFailed, ExitKilled, ExitNone, ExitUnknown}
}

// Error is an error of the run.
type Error struct {
	At    time.Time `json:"at"`             // time of the latest occurrence
	Since time.Time `json:"since"`          // time of the first consecutive occurrence
	Count int       `json:"count"`          // number of consecutive occurrences
	Ended time.Time `json:"ended,omitzero"` // time at which the error was resolved; absent if it persists
	// Class is one of volume, sidecar, validation, configuration, certificate, timeout, server, record, etcd, crash.
	Class   string `json:"class"`
	Message string `json:"message"`
}

// Validation describes the validation of the data directory in this run.
type Validation struct {
	Mode   string `json:"mode"` // sanity or full
	Reason string `json:"reason"`
}

// Versions lists the versions of the programs in the process.
type Versions struct {
	Wrapper string `json:"wrapper"`
	Etcd    string `json:"etcd"`
	Go      string `json:"go"`
}

// A Check is the status of one part of the member, by name.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, degraded or failed
	Reason string `json:"reason,omitempty"`
}

// CommonReason returns the reason for which all checks fail, or "". They share one while etcd is not running, and
// until the first check after etcd has started.
func CommonReason(checks []Check) string {
	differs := func(c Check) bool { return c.Status != HealthFailed || c.Reason != checks[0].Reason }
	if len(checks) < 2 || slices.ContainsFunc(checks, differs) {
		return ""
	}
	return checks[0].Reason
}

// Certificate is a certificate file in use.
type Certificate struct {
	Name      string    `json:"name"` // purpose: etcd_server, etcd_server_ca, etcd_peer, etcd_peer_ca, etcd_client or sidecar_ca
	Path      string    `json:"path"`
	NotBefore time.Time `json:"not_before"` // latest value in the file
	NotAfter  time.Time `json:"not_after"`  // earliest value in the file
}

// expiryWarning is the remaining lifetime of a certificate at which warnings start.
const expiryWarning = 72 * time.Hour

// IsExpiring reports whether the certificate has expired or will within 72 hours.
func (c Certificate) IsExpiring(now time.Time) bool { return c.NotAfter.Sub(now) <= expiryWarning }

// Transition is a step of the lifecycle, or a change of readiness.
type Transition = statemachine.Transition

// TransitionCount counts the transitions from one state to another by event and guard.
type TransitionCount = statemachine.TransitionCount

// Recovery describes the recovery of lost or damaged data.
type Recovery struct {
	State            string    `json:"state"` // state of the state machine shown by --dump-fsm=recovery.dot
	Since            time.Time `json:"since"`
	Reason           string    `json:"reason"`                      // reason for the state, as a sentence
	Loss             string    `json:"loss,omitempty"`              // numbers of what is restored and what is lost; empty if nothing is restored
	RestoredBytes    int64     `json:"restored_bytes,omitempty"`    // so far
	TotalBytes       int64     `json:"total_bytes,omitempty"`       // an estimate
	BytesPerSecond   float64   `json:"bytes_per_second,omitempty"`  // bytes per second
	RemainingSeconds float64   `json:"remaining_seconds,omitempty"` // an estimate
}

// Trends are series of measurements of the last hours, of the same length, the oldest point first.
type Trends struct {
	Interval  float64   `json:"interval"`           // seconds between two points, which grow with the covered time
	Until     time.Time `json:"until"`              // time of the last point
	Write     Points    `json:"write_seconds"`      // mean duration of clients' writes on this member
	Read      Points    `json:"read_seconds"`       // mean duration of clients' reads on this member
	Fsync     Points    `json:"fsync_seconds"`      // 99th percentile of the fsync duration of etcd's log
	DBSize    Points    `json:"db_size"`            // size of the database file in bytes
	DBInUse   Points    `json:"db_in_use"`          // bytes of the file that a defragmentation would keep
	BackupLag Points    `json:"backup_lag_seconds"` // age of the oldest change that is not in the store
	Revisions Points    `json:"revisions_per_second"`
}

// Points are the values of a series. A missing value is NaN, which is null in JSON.
type Points []float32

// digits is the precision of points in JSON.
const digits = 4

// MarshalJSON implements json.Marshaler.
func (p Points) MarshalJSON() ([]byte, error) {
	text := []byte{'['}
	for i, point := range p {
		if i > 0 {
			text = append(text, ',')
		}
		if math.IsNaN(float64(point)) {
			text = append(text, "null"...)
		} else {
			text = strconv.AppendFloat(text, float64(point), 'g', digits, 32)
		}
	}
	return append(text, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Points) UnmarshalJSON(text []byte) error {
	var points []*float32
	if err := json.Unmarshal(text, &points); err != nil {
		return err
	}
	*p = make(Points, len(points))
	for i, point := range points {
		if (*p)[i] = float32(math.NaN()); point != nil {
			(*p)[i] = *point
		}
	}
	return nil
}

// TimelineEvent is a notable event.
type TimelineEvent struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`    // one of start, readiness, leader, full_snapshot, restore_test, defragmentation, alarm, trouble, recovery, restore
	Health  string    `json:"health"`  // health after the event: ok, degraded or failed
	Message string    `json:"message"` // a clause
}
