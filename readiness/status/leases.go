package status

import "time"

// Lease is a Kubernetes lease that the member renews.
type Lease struct {
	Kind    string        `json:"kind"`              // member, full_snapshot or delta_snapshot
	Name    string        `json:"name"`              // of the lease, in the pod's namespace
	Holder  string        `json:"holder"`            // what it says; empty until it was renewed
	Renewed time.Time     `json:"renewed,omitzero"`  // when it was renewed last, or found to be right
	Trouble *LeaseTrouble `json:"trouble,omitempty"` // while it lasts
}

// LeaseTrouble is why a lease is not renewed.
type LeaseTrouble struct {
	Since   time.Time `json:"since"`
	Times   int       `json:"times"` // in a row
	Message string    `json:"message"`
	NextTry time.Time `json:"next_try"`
}
