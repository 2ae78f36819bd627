// Package state defines the published state of a member: the cluster, database maintenance, the data version and the
// leases. The packages under member fill in the state, and the status document, the metrics, the page and the
// terminal show it unchanged. This package contains no logic and imports no other package of this module.
package state

import "time"

// Member describes the cluster as seen by this member, and the member's own database. IDs are hexadecimal.
type Member struct {
	Name       string `json:"member_name,omitempty"`
	ClusterID  string `json:"cluster_id,omitempty"`
	Leader     string `json:"leader,omitempty"` // ID of the leader; empty if unknown
	Term       uint64 `json:"term,omitempty"`
	Revision   int64  `json:"revision,omitempty"`  // newest revision in the database
	DBSize     int64  `json:"db_size,omitempty"`   // size of the database file in bytes
	DBInUse    int64  `json:"db_in_use,omitempty"` // bytes in use; a defragmentation reclaims the rest
	Quota      int64  `json:"quota,omitempty"`     // database quota in bytes; 0 if there is none
	VolumeFree int64  `json:"volume_free,omitempty"`
	VolumeSize int64  `json:"volume_size,omitempty"` // size of the data volume in bytes
	NewCluster bool   `json:"new_cluster,omitempty"` // this run created the cluster in an empty data directory
	Peers      []Peer `json:"peers,omitempty"`       // all members of the cluster, including this one, sorted by name
}

// Peer is a member of the cluster.
type Peer struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"` // empty until the member has published its name
	URLs    []string `json:"urls"`
	Active  bool     `json:"active"` // this member is connected to the peer
	Leader  bool     `json:"leader"`
	Learner bool     `json:"learner"` // the peer is a learner, so it cannot vote yet
}

// Requests contains the number of successful client requests since etcd was started, and their total duration. The
// duration includes raft and the disk, but not the network.
type Requests struct {
	Count int64
	Took  time.Duration
}

// DataVersion describes whether an older etcd version can read the data.
type DataVersion struct {
	Wanted   string `json:"wanted"`   // 3.5 or 3.6
	Cluster  string `json:"cluster"`  // version such as 3.5, or unknown
	Storage  string `json:"storage"`  // version of this member's database, such as 3.5, or unknown
	Phase    string `json:"phase"`    // waiting, lowering, holding, letting go, rising, kept or not changed
	Reason   string `json:"reason"`   // reason for the phase
	Readable bool   `json:"readable"` // the wanted etcd version can read the data
}

// Maintenance describes database maintenance: the current phase and the defragmentations so far.
type Maintenance struct {
	Phase               string           `json:"phase"`            // idle, waiting, handing off, running or catching up
	Since               time.Time        `json:"since"`            // start of the phase
	Reason              string           `json:"reason,omitempty"` // reason for the phase
	ExpectedSeconds     float64          `json:"expected_seconds"` // expected duration of a defragmentation
	Progress            float64          `json:"progress"`         // progress of the running defragmentation, from 0 to 1
	Readers             []DatabaseReader `json:"readers,omitempty"`
	LastDefragmentation *Defragmentation `json:"last_defragmentation,omitempty"` // last defragmentation in this process
	Completed           int              `json:"completed"`                      // number of completed defragmentations in this process
	Failed              int              `json:"failed"`                         // number of defragmentations requested or started but not completed
	FreedBytes          int64            `json:"freed_bytes"`                    // total number of bytes freed
	NoSpaceDisarmed     int              `json:"nospace_disarmed"`               // number of times the NOSPACE alarm was disarmed
}

// Busy reports whether a defragmentation is in progress.
func (m *Maintenance) Busy() bool { return m != nil && m.Phase != "idle" && m.Phase != "waiting" }

// DatabaseReader is a reader of the whole database, which delays defragmentation.
type DatabaseReader struct {
	Name  string    `json:"name"` // noun phrase, such as "the snapshot for 10.0.0.7:40312"
	Since time.Time `json:"since"`
}

// Defragmentation describes a completed or failed defragmentation.
type Defragmentation struct {
	At          time.Time `json:"at"`
	Seconds     float64   `json:"seconds"`      // how long the database was blocked
	Origin      string    `json:"origin"`       // threshold, command or client
	BytesBefore int64     `json:"bytes_before"` // size of the database file in bytes
	BytesAfter  int64     `json:"bytes_after"`
	Error       string    `json:"error,omitempty"` // why the defragmentation failed; empty if it succeeded
}

// Lease is a Kubernetes lease that the member renews.
type Lease struct {
	Kind    string        `json:"kind"`              // member, full_snapshot or delta_snapshot
	Name    string        `json:"name"`              // name of the lease in the pod's namespace
	Holder  string        `json:"holder"`            // holder of the lease; empty until the first renewal
	Renewed time.Time     `json:"renewed,omitzero"`  // time when the lease was last renewed or checked
	Problem *LeaseProblem `json:"problem,omitempty"` // nil if there is none
}

// LeaseProblem describes why a lease is not renewed.
type LeaseProblem struct {
	Since     time.Time `json:"since"`
	Count     int       `json:"count"` // consecutive failures
	Message   string    `json:"message"`
	NextRetry time.Time `json:"next_retry"`
}
