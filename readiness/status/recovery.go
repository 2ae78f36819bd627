package status

import "time"

// Recovery is how far data are that come back from the store, or why they do not.
type Recovery struct {
	State   string    `json:"state"` // of the machine of --dump-fsm --machine=recovery
	Since   time.Time `json:"since"`
	Reason  string    `json:"reason"`                 // why it is in that state: a sentence
	Loss    string    `json:"loss,omitempty"`         // what comes back and what does not, in numbers; empty if nothing is restored
	Bytes   int64     `json:"bytes,omitempty"`        // rebuilt so far
	Of      int64     `json:"of,omitempty"`           // about how many that will be
	Rate    float64   `json:"rate,omitempty"`         // bytes a second
	Seconds float64   `json:"seconds_left,omitempty"` // that building will still take
}
