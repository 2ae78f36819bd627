// Package state defines the published state of a member: its cluster, the maintenance of its database, the version of
// its data and its leases. The rooms below member fill it in; the status document, the metrics, the page and the
// terminal show it unchanged. It has no logic and imports no other package of this module.
package state

import "time"

// Member is a member's cluster as the member sees it, and its own database. IDs are hexadecimal.
type Member struct {
	Name       string `json:"member_name,omitempty"`
	ClusterID  string `json:"cluster_id,omitempty"`
	Leader     string `json:"leader,omitempty"` // its ID; empty if none is known
	Term       uint64 `json:"term,omitempty"`
	Revision   int64  `json:"revision,omitempty"`  // the newest of its database
	DBSize     int64  `json:"db_size,omitempty"`   // bytes of the file
	DBInUse    int64  `json:"db_in_use,omitempty"` // bytes of it that defragmentation would keep
	Quota      int64  `json:"quota,omitempty"`     // bytes, max; 0 if there is no limit
	VolumeFree int64  `json:"volume_free,omitempty"`
	VolumeSize int64  `json:"volume_size,omitempty"` // bytes of the volume with the database
	NewCluster bool   `json:"new_cluster,omitempty"` // this run created the cluster on an empty data directory
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

// Requests counts the successful requests of a member's clients since etcd was created, and their total duration: raft,
// the disk and all waiting, but not the network.
type Requests struct {
	Count int64
	Took  time.Duration
}

// DataVersion describes whether an older etcd can read the data.
type DataVersion struct {
	Wanted   string `json:"wanted"`   // 3.5 or 3.6
	Cluster  string `json:"cluster"`  // 3.5, for example, or unknown
	Storage  string `json:"storage"`  // of this member's database, likewise
	Phase    string `json:"phase"`    // waiting, lowering, holding, letting go, rising, kept or not changed
	Reason   string `json:"reason"`   // of the phase, a clause
	Readable bool   `json:"readable"` // etcd of the wanted version can read the data
}

// Maintenance describes the defragmentations of the database.
type Maintenance struct {
	Phase               string           `json:"phase"`            // idle, waiting, handing off, running or catching up
	Since               time.Time        `json:"since"`            // when the phase started
	Reason              string           `json:"reason,omitempty"` // of the phase, a clause
	ExpectedSeconds     float64          `json:"expected_seconds"` // for a defragmentation
	Progress            float64          `json:"progress"`         // of the running one, from 0 to 1
	Readers             []DatabaseReader `json:"readers,omitempty"`
	LastDefragmentation *Defragmentation `json:"last_defragmentation,omitempty"` // since the process started
	Completed           int              `json:"completed"`                      // defragmentations since the process started
	Failed              int              `json:"failed"`                         // requested or started, but not completed
	FreedBytes          int64            `json:"freed_bytes"`                    // in total
	NoSpaceDisarmed     int              `json:"nospace_disarmed"`               // how often the alarm NOSPACE was disarmed
}

// Busy reports whether a defragmentation is running.
func (m *Maintenance) Busy() bool { return m != nil && m.Phase != "idle" && m.Phase != "waiting" }

// DatabaseReader is a reader of the whole database, which delays defragmentation.
type DatabaseReader struct {
	Name  string    `json:"name"` // a noun, such as "the snapshot for 10.0.0.7:40312"
	Since time.Time `json:"since"`
}

// Defragmentation describes a defragmentation that ended.
type Defragmentation struct {
	At          time.Time `json:"at"`
	Seconds     float64   `json:"seconds"`      // during which the database was blocked
	Origin      string    `json:"origin"`       // threshold, command or client
	BytesBefore int64     `json:"bytes_before"` // bytes of the file
	BytesAfter  int64     `json:"bytes_after"`
	Error       string    `json:"error,omitempty"` // why it failed
}

// Lease is a Kubernetes lease that the member renews.
type Lease struct {
	Kind    string        `json:"kind"`              // member, full_snapshot or delta_snapshot
	Name    string        `json:"name"`              // of the lease, in the pod's namespace
	Holder  string        `json:"holder"`            // the content; empty until it was renewed
	Renewed time.Time     `json:"renewed,omitzero"`  // when it was last renewed or found correct
	Problem *LeaseProblem `json:"problem,omitempty"` // while it lasts
}

// LeaseProblem describes why a lease is not renewed.
type LeaseProblem struct {
	Since     time.Time `json:"since"`
	Count     int       `json:"count"` // in a row
	Message   string    `json:"message"`
	NextRetry time.Time `json:"next_retry"`
}
