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
	Since            time.Time          `json:"since"`                // when the state was entered
	Reason           string             `json:"reason"`               // why the state was entered, a sentence
	Ready            bool               `json:"ready"`                // as /readyz reports it
	ReadySince       time.Time          `json:"ready_since"`          // when Ready changed last
	Attempt          int                `json:"attempt"`              // how often the state was entered the same way in a row
	NextRetry        time.Time          `json:"next_retry,omitzero"`  // when the state's timer runs out, if it has one
	LastError        *Error             `json:"last_error,omitempty"` // the latest; Ended is set once it is resolved
	Validation       *Validation        `json:"validation,omitempty"` // once it was requested
	SidecarStatus    string             `json:"sidecar_status,omitempty"`
	Standalone       bool               `json:"standalone,omitempty"` // there is no sidecar
	Pod              string             `json:"pod"`                  // or the name of the host
	MemberID         string             `json:"member_id,omitempty"`  // etcd's, hexadecimal, once etcd is ready
	state.Member                        // set once etcd is opened
	Started          time.Time          `json:"started"`   // when the process started
	LastExit         string             `json:"last_exit"` // how the run before this one ended, one of ExitClasses
	Versions         Versions           `json:"versions"`
	Checks           []Check            `json:"checks"`                    // of /readyz, without the lifecycle's own
	DataVersion      *state.DataVersion `json:"data_version,omitempty"`    // once etcd is ready
	Maintenance      *state.Maintenance `json:"maintenance,omitempty"`     // once etcd is opened
	Backup           *facts.Backups     `json:"backup,omitempty"`          // with a store for backups
	Recovery         *Recovery          `json:"recovery,omitempty"`        // while data are recovered, afterwards, or if they cannot be
	Leases           []state.Lease      `json:"leases,omitempty"`          // with --kubernetes=leases, once they have content
	ConfigWarnings   []string           `json:"config_warnings,omitempty"` // settings of etcd that have no effect or perhaps not the intended one, as sentences
	Certificates     []Certificate      `json:"certificates,omitempty"`    // those in use, once they are known
	Transitions      []Transition       `json:"transitions"`               // oldest first, max 64; alternating ones are counted
	TransitionCounts []TransitionCount  `json:"transition_counts"`         // since the process started

	Trends   *Trends         `json:"trends,omitempty"`   // once etcd has run for seconds
	Timeline []TimelineEvent `json:"timeline,omitempty"` // oldest first, max 10 of a kind

	PhaseSince     time.Time `json:"phase_since"`                // when the phase started; polling is one phase
	LastExitReason string    `json:"last_exit_reason,omitempty"` // of LastExit, where it is known
}

// Values of LastExit, in addition to those of the exit record.
const (
	ExitCrash   = "crash"
	ExitUnknown = "unknown" // by another program, or by a version that writes no note
	ExitFailed  = "failed"  // it ended by itself with an exit status other than 0
	ExitKilled  = "killed"  // it was killed
	ExitNone    = "none"    // the volume is new
)

// ExitClasses returns all values of LastExit.
func ExitClasses() []string {
	return []string{"terminated", "interrupt", ExitCrash, ExitFailed, ExitKilled, ExitNone, ExitUnknown}
}

// Error is an error of the run.
type Error struct {
	At    time.Time `json:"at"`             // the latest time
	Since time.Time `json:"since"`          // the first time in a row
	Count int       `json:"count"`          // how often in a row
	Ended time.Time `json:"ended,omitzero"` // when it was resolved; absent while it lasts
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
	Name      string    `json:"name"` // what it is for: etcd_server, etcd_server_ca, etcd_peer, etcd_peer_ca, etcd_client, sidecar_ca
	Path      string    `json:"path"`
	NotBefore time.Time `json:"not_before"` // the latest in the file
	NotAfter  time.Time `json:"not_after"`  // the earliest in the file
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
	State            string    `json:"state"` // of the machine of --dump-fsm=recovery.dot
	Since            time.Time `json:"since"`
	Reason           string    `json:"reason"`                      // why it is in that state: a sentence
	Loss             string    `json:"loss,omitempty"`              // what is restored and what is lost, in numbers; empty if nothing is restored
	RestoredBytes    int64     `json:"restored_bytes,omitempty"`    // so far
	TotalBytes       int64     `json:"total_bytes,omitempty"`       // an estimate
	BytesPerSecond   float64   `json:"bytes_per_second,omitempty"`  // bytes a second
	RemainingSeconds float64   `json:"remaining_seconds,omitempty"` // an estimate
}

// Trends are series of measurements of the last hours, of the same length, the oldest point first.
type Trends struct {
	Interval  float64   `json:"interval"`           // seconds between two points; it grows with the time covered
	Until     time.Time `json:"until"`              // when the last point was taken
	Write     Points    `json:"write_seconds"`      // the mean duration of clients' writes here
	Read      Points    `json:"read_seconds"`       // likewise of reads
	Fsync     Points    `json:"fsync_seconds"`      // the 99th percentile of fsync of etcd's log
	DBSize    Points    `json:"db_size"`            // bytes of the database's file
	DBInUse   Points    `json:"db_in_use"`          // bytes of it that defragmentation would keep
	BackupLag Points    `json:"backup_lag_seconds"` // the age of the oldest change that is not in the store
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
	Health  string    `json:"health"`  // of what happened: ok, degraded or failed
	Message string    `json:"message"` // a clause
}
