package kubernetes

import (
	"encoding/json"
	"time"
)

// leaseKind is what is got and patched.
var leaseObjects = Kind{Group: "coordination.k8s.io/v1", Plural: "leases", Noun: "lease", Verbs: "get and patch"}

// lease is a Lease of coordination.k8s.io/v1, as far as it is read, or a merge patch of one.
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

// microTime is a time as Kubernetes writes it into leases, which takes nothing but six digits.
type microTime struct{ time.Time }

const microFormat = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(microFormat)) }
