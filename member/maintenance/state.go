package maintenance

import (
	"time"

	"etcd-wrapper/internal/gate"
)

// Phase is what a Keeper is about.
type Phase string

// The phases, in their order.
const (
	Idle       Phase = "idle"
	Waiting    Phase = "waiting"     // a defragmentation is wanted, and something is in its way
	HandingOff Phase = "handing off" // clients are sent to others and, if it leads, leadership is moved
	Running    Phase = "running"     // etcd defragments
	CatchingUp Phase = "catching up" // what was committed meanwhile is applied
)

// busy reports whether a defragmentation is under way.
func (p Phase) busy() bool { return p == HandingOff || p == Running || p == CatchingUp }

// State is what there is to know about upkeep at one moment.
type State struct {
	Phase    Phase
	Since    time.Time     // when the phase began
	Reason   string        // of the phase, a clause for people; empty if there is nothing to say
	Expected time.Duration // how long a defragmentation would take now, or is expected to take, if it runs
	Progress float64       // of one that runs, from 0 to 1
	Readers  []gate.Reader // who reads the whole database
	Last     *Outcome      // nil if there was none since the process started
	Done     int           // how many were done since the process started
	Failed   int           // how many failed
	Freed    int64         // bytes that those which were done gave back to the volume
	Lifted   int           // how often the alarm NOSPACE was lifted
}

// Outcome is how a defragmentation ended.
type Outcome struct {
	At     time.Time     // when it ended
	Took   time.Duration // of it, how long the database stood still
	Origin string        // who wanted it: the threshold, a person, or a client
	Before int64         // bytes of the file before
	After  int64         // bytes of the file after
	Error  string        // why it failed; empty if it did not
}

// Origins of a defragmentation.
const (
	ByThreshold = "threshold"
	ByCommand   = "command"
	ByClient    = "client"
)
