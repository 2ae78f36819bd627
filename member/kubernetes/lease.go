package kubernetes

import (
	"encoding/json"
	"time"
)

// leaseObjects is the kind Lease.
var leaseObjects = Kind{Group: "coordination.k8s.io/v1", Plural: "leases", Noun: "lease", Verbs: "get and patch"}

// lease has the fields of a Lease of coordination.k8s.io/v1 that are used. It also serves as a merge patch.
type lease struct {
	Metadata leaseMetadata `json:"metadata,omitzero"`
	Spec     leaseSpec     `json:"spec"`
}

type leaseMetadata struct {
	ResourceVersion string            `json:"resourceVersion,omitempty"` // in a patch: only if it is still this one
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type leaseSpec struct {
	HolderIdentity string    `json:"holderIdentity,omitempty"`
	RenewTime      microTime `json:"renewTime,omitzero"`
}

// microTime is the format of times in leases: Kubernetes accepts exactly six fractional digits.
type microTime struct{ time.Time }

const microFormat = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(microFormat)) }
