package leases

import (
	"encoding/json"
	"time"

	"etcd-wrapper/member/kubeapi"
)

// leaseKind is what is got and patched.
var leaseKind = kubeapi.Kind{Group: "coordination.k8s.io/v1", Plural: "leases", Noun: "lease", Verbs: "get and patch"}

// object is a Lease of coordination.k8s.io/v1, as far as it is read, or a merge patch of one.
type object struct {
	Metadata metadata `json:"metadata,omitzero"`
	Spec     spec     `json:"spec"`
}

type metadata struct {
	ResourceVersion string            `json:"resourceVersion,omitempty"` // in a patch: only if it is still this one
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type spec struct {
	HolderIdentity string    `json:"holderIdentity,omitempty"`
	RenewTime      microTime `json:"renewTime,omitzero"`
}

// microTime is a time as Kubernetes writes it into leases, which takes nothing but six digits.
type microTime struct{ time.Time }

const microFormat = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(microFormat)) }
