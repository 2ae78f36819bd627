package status

import "time"

// Upkeep is how the member's database is kept small.
type Upkeep struct {
	Phase    string           `json:"phase"`            // idle, waiting, handing off, running or catching up
	Since    time.Time        `json:"since"`            // when the phase began
	Reason   string           `json:"reason,omitempty"` // of the phase: a clause, for people
	Expected float64          `json:"expected"`         // seconds that a defragmentation would take now, or is expected to take
	Progress float64          `json:"progress"`         // of one that runs, from 0 to 1
	Readers  []DatabaseReader `json:"readers,omitempty"`
	Last     *Defragmentation `json:"last,omitempty"` // since the process started
	Done     int              `json:"done"`           // defragmentations since the process started
	Failed   int              `json:"failed"`         // those that were asked for or begun, and came to nothing
	Freed    int64            `json:"freed"`          // bytes that were given back to the volume
	Lifted   int              `json:"lifted"`         // how often the alarm NOSPACE was lifted
}

// DatabaseReader is somebody who reads the whole database, beside whom it is not defragmented.
type DatabaseReader struct {
	What  string    `json:"what"`
	Since time.Time `json:"since"`
}

// Defragmentation is how one ended.
type Defragmentation struct {
	At     time.Time `json:"at"`
	Took   float64   `json:"took"`   // seconds in which the database stood still
	Origin string    `json:"origin"` // who wanted it: threshold, command or client
	Before int64     `json:"before"` // bytes of the file
	After  int64     `json:"after"`
	Error  string    `json:"error,omitempty"` // why it came to nothing
}

// Busy reports whether a defragmentation is under way.
func (u *Upkeep) Busy() bool { return u != nil && u.Phase != "idle" && u.Phase != "waiting" }
