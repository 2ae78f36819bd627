package recovery

import (
	"sync"
	"time"

	"etcd-wrapper/exitcode"
)

// Progress describes a run for users.
type Progress struct {
	State      State // empty before the first run
	Since      time.Time
	Reason     string  // why it is in that state: a sentence
	Uncompared bool    // etcd may open the data, and it is unknown whether the store has more
	Warning    bool    // etcd may open the data, and Reason is a warning
	Loss       string  // what is lost or undone, in numbers; empty if nothing is restored
	Bytes      int64   // bytes that were rebuilt
	Of         int64   // expected total of Bytes; 0 if unknown
	Rate       float64 // bytes per second
}

// Left returns how long building will take at the present rate; 0 if unknown.
func (p Progress) Left() time.Duration {
	if p.Rate <= 0 || p.Of <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Of-p.Bytes) / p.Rate * float64(time.Second))
}

// Restores reports whether a run restores something, or has.
func (p Progress) Restores() bool { return p.Loss != "" }

// A tracker holds the progress of the present or the last run. Its methods may be called from any goroutine.
type tracker struct {
	mu  sync.Mutex
	now Progress
}

func (t *tracker) current() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

func (t *tracker) change(change func(*Progress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.now)
}

// An Result is the end of a run that had something to restore.
type Result struct {
	Cause string // the state of the volume, Wanted or Unfinished
	Ended string // Restored, Rejoined or Denied
	Lost  int64  // revisions that are known to be lost, without those that the user has undone
}

// The outcomes, and the causes that are not states of the volume.
const (
	Restored   = "restored"   // from the store
	Rejoined   = "rejoined"   // with the data of the other members
	Denied     = "refused"    // the user has to act
	Wanted     = "requested"  // by --restore-to
	Unfinished = "unfinished" // a run that was cut off was completed
)

// A RejectError is the reason why etcd may not open the data directory.
type RejectError struct {
	sentence string
	cause    error
	status   exitcode.Code
}

// Error returns a sentence that names the way out.
func (r *RejectError) Error() string { return r.sentence }

// Status returns the exit status: BadConfig if a request cannot be carried out, EtcdFailed if the user has to do
// something else, Clean if the process should try again.
func (r *RejectError) Status() exitcode.Code { return r.status }

// Unwrap returns the error of the volume or the store.
func (r *RejectError) Unwrap() error { return r.cause }
