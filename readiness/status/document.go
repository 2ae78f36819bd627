// Package status defines the wrapper's status document and serves it at GET /lifecycle, either once or as a stream of
// changes. The status command, the page and the metrics are consistent, because they are all based on the same
// document.
//
// The headline (headline.go) is derived from the other fields. Package report fills in the document; this package
// imports neither the lifecycle nor etcd.
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

// A Document describes the state of the wrapper at one point in time. The JSON encoding of a Document is a documented
// API: fields may be added but not renamed. A Document does not contain any secrets.
type Document struct {
	Headline         Headline           `json:"headline"` // summary
	State            string             `json:"state"`
	Since            time.Time          `json:"since"`                // when the state was entered
	Reason           string             `json:"reason"`               // why the state was entered
	Ready            bool               `json:"ready"`                // result of /readyz
	ReadySince       time.Time          `json:"ready_since"`          // when Ready last changed
	Attempt          int                `json:"attempt"`              // number of times that the last transition was taken in this phase
	NextRetry        time.Time          `json:"next_retry,omitzero"`  // when the state's timer fires, if it has one
	LastError        *Error             `json:"last_error,omitempty"` // last error; Ended is set once it is resolved
	Validation       *Validation        `json:"validation,omitempty"` // absent until an initialization is requested
	SidecarStatus    string             `json:"sidecar_status,omitempty"`
	Standalone       bool               `json:"standalone,omitempty"` // whether the wrapper runs without a sidecar
	Pod              string             `json:"pod"`                  // name of the pod or the host
	MemberID         string             `json:"member_id,omitempty"`  // etcd member ID in hexadecimal; absent until etcd is ready
	state.Member                        // facts about etcd, set once it has been started
	Started          time.Time          `json:"started"`   // start of the process
	LastExit         string             `json:"last_exit"` // how the previous run ended; one of ExitClasses
	Versions         Versions           `json:"versions"`
	Checks           []Check            `json:"checks"`                    // /readyz checks, except for the lifecycle check
	DataVersion      *state.DataVersion `json:"data_version,omitempty"`    // absent until etcd is ready
	Maintenance      *state.Maintenance `json:"maintenance,omitempty"`     // absent until etcd has been started
	Backup           *facts.Backups     `json:"backup,omitempty"`          // absent without a backup store
	Recovery         *Recovery          `json:"recovery,omitempty"`        // set during and after a recovery, and if the data cannot be recovered
	Leases           []state.Lease      `json:"leases,omitempty"`          // leases that this member renews
	ConfigWarnings   []string           `json:"config_warnings,omitempty"` // warnings about ineffective or suspicious etcd settings
	Certificates     []Certificate      `json:"certificates,omitempty"`    // certificates in use
	Transitions      []Transition       `json:"transitions"`               // oldest first, at most 64; repeated transitions are combined
	TransitionCounts []TransitionCount  `json:"transition_counts"`         // how often each transition has occurred since the process started

	Trends   *Trends         `json:"trends,omitempty"`   // absent until etcd has run for a few seconds
	Timeline []TimelineEvent `json:"timeline,omitempty"` // oldest first, at most 10 of each kind

	PhaseSince     time.Time `json:"phase_since"`                // start of the phase, which spans several states while polling
	LastExitReason string    `json:"last_exit_reason,omitempty"` // why the previous run ended, if known
}

// Values of LastExit that an exit record cannot contain.
const (
	ExitCrash   = "crash"
	ExitUnknown = "unknown" // another program or an older version was running
	ExitFailed  = "failed"  // the process exited with a nonzero status
	ExitKilled  = "killed"  // the process was killed
	ExitNone    = "none"    // the volume is new
)

// ExitClasses returns all values that LastExit can have.
func ExitClasses() []string {
	return []string{"terminated", "interrupt", ExitCrash, ExitFailed, ExitKilled, ExitNone, ExitUnknown}
}

// An Error is an error that occurred in the current run.
type Error struct {
	At    time.Time `json:"at"`             // time of the last occurrence
	Since time.Time `json:"since"`          // time of the first occurrence since the error last ended or changed
	Count int       `json:"count"`          // number of occurrences since then
	Ended time.Time `json:"ended,omitzero"` // when the error was resolved; absent if it persists
	// Class is one of volume, sidecar, validation, configuration, certificate, timeout, server, record, etcd, crash.
	Class   string `json:"class"`
	Message string `json:"message"`
}

// A Validation describes how the data directory was validated in this run.
type Validation struct {
	Mode   string `json:"mode"`   // sanity or full
	Reason string `json:"reason"` // reason for the mode
}

// Versions contains the versions of the wrapper, etcd and Go.
type Versions struct {
	Wrapper string `json:"wrapper"`
	Etcd    string `json:"etcd"`
	Go      string `json:"go"`
}

// A Check is the result of a readiness check.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, degraded or failed
	Reason string `json:"reason,omitempty"`
}

// CommonReason returns the reason that all checks share if all of them have failed, and "" if a check has not failed
// or the reasons differ. All checks share a reason only while etcd is not being checked.
func CommonReason(checks []Check) string {
	differs := func(c Check) bool { return c.Status != HealthFailed || c.Reason != checks[0].Reason }
	if len(checks) < 2 || slices.ContainsFunc(checks, differs) {
		return ""
	}
	return checks[0].Reason
}

// A Certificate is a certificate file in use.
type Certificate struct {
	Name      string    `json:"name"` // purpose: etcd_server, etcd_server_ca, etcd_peer, etcd_peer_ca, etcd_client or sidecar_ca
	Path      string    `json:"path"`
	NotBefore time.Time `json:"not_before"` // latest start of validity among the certificates in the file
	NotAfter  time.Time `json:"not_after"`  // earliest end of validity among the certificates in the file
}

// expiryWarning is the remaining validity below which a certificate causes a warning.
const expiryWarning = 72 * time.Hour

// IsExpiring reports whether the certificate has expired or will expire within 72 hours.
func (c Certificate) IsExpiring(now time.Time) bool { return c.NotAfter.Sub(now) <= expiryWarning }

// A Transition is a transition of the lifecycle, or a readiness change.
type Transition = statemachine.Transition

// A TransitionCount counts transitions with the same states, event and guard.
type TransitionCount = statemachine.TransitionCount

// Recovery describes the recovery of lost or damaged data.
type Recovery struct {
	State            string    `json:"state"` // state in the state machine printed by --dump-fsm=recovery.dot
	Since            time.Time `json:"since"`
	Reason           string    `json:"reason"`                      // reason for the state
	Loss             string    `json:"loss,omitempty"`              // what is restored and what is lost; empty if nothing is restored
	RestoredBytes    int64     `json:"restored_bytes,omitempty"`    // bytes restored so far
	TotalBytes       int64     `json:"total_bytes,omitempty"`       // estimated size of the restore
	BytesPerSecond   float64   `json:"bytes_per_second,omitempty"`  // speed of the restore
	RemainingSeconds float64   `json:"remaining_seconds,omitempty"` // estimated time until the restore ends
}

// Trends contains time series of the same length, oldest point first.
type Trends struct {
	Interval  float64   `json:"interval"`           // seconds between points; increases over time
	Until     time.Time `json:"until"`              // time of the last point
	Write     Points    `json:"write_seconds"`      // mean duration of client writes on this member
	Read      Points    `json:"read_seconds"`       // mean duration of client reads on this member
	Fsync     Points    `json:"fsync_seconds"`      // 99th percentile of the duration of WAL fsyncs
	DBSize    Points    `json:"db_size"`            // size of the database file in bytes
	DBInUse   Points    `json:"db_in_use"`          // number of bytes in use in the database file
	BackupLag Points    `json:"backup_lag_seconds"` // age of the oldest change that has not been stored yet
	Revisions Points    `json:"revisions_per_second"`
}

// Points contains the values of a time series. A missing value is NaN, which is encoded as null in JSON.
type Points []float32

// digits is the number of significant digits of points in JSON.
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

// A TimelineEvent is an event on the timeline.
type TimelineEvent struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`    // one of start, readiness, leader, full_snapshot, restore_test, defragmentation, alarm, problem, recovery, restore
	Health  string    `json:"health"`  // health after the event: ok, degraded or failed
	Message string    `json:"message"` // what happened
}
