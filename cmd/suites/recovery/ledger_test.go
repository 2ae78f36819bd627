package recovery_test

import (
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// markPrefix is the prefix of a second key that is written in the same transaction. It identifies the last attempt,
// even if that attempt deleted the first key.
const markPrefix = "beside/"

// An attempt is a change to a key that a client has requested.
type attempt struct {
	token    string // unique
	deletes  bool
	lease    clientv3.LeaseID // 0 for no lease
	revision int64            // 0 unless known to have taken effect
	failed   bool             // known to have had no effect or to have been rolled back
}

// A ledger records, in order, all of the clients' attempts to change keys. Each key is changed by only one client at
// a time.
type ledger struct {
	mu    sync.Mutex
	keys  map[string][]*attempt
	tries int
	acked int
	seen  int64 // highest revision that any client has received
}

func newLedger() *ledger { return &ledger{keys: map[string][]*attempt{}} }

// attempt records a change before it is requested.
func (l *ledger) attempt(key string, deletes bool, lease clientv3.LeaseID) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	now := &attempt{token: fmt.Sprintf("%s#%d", key, l.tries), deletes: deletes, lease: lease}
	l.keys[key] = append(l.keys[key], now)
	return now
}

// acknowledge records that a change has been acknowledged.
func (l *ledger) acknowledge(done *attempt, revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked++
	done.revision = revision
	l.seen = max(l.seen, revision)
}

// observe records a revision that a client has received.
func (l *ledger) observe(revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = max(l.seen, revision)
}

func (l *ledger) highest() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// contents maps each of etcd's keys to its value and revision.
type contents map[string]*mvccpb.KeyValue

// verify compares the data with the data that must or may exist at a revision and returns the differences. verify also
// records the outcome of unacknowledged attempts. If over is set, none of these attempts can still succeed. undone is
// the number of acknowledged changes that were rolled back.
func (l *ledger) verify(have contents, at int64, over bool) (wrong []string, undone int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, attempts := range l.keys {
		if complaint := verifyKey(attempts, have[key], have[markPrefix+key], at); complaint != "" {
			wrong = append(wrong, fmt.Sprintf("%s at revision %d: %s", key, at, complaint))
		}
		undone += markUndone(attempts, at, over)
	}
	for key := range have {
		if l.keys[key] == nil && (len(key) <= len(markPrefix) || l.keys[key[len(markPrefix):]] == nil) {
			wrong = append(wrong, key+" was never written")
		}
	}
	return wrong, undone
}

// markUndone marks the attempts that were rolled back or have never taken effect, and returns how many of them had
// been acknowledged.
func markUndone(attempts []*attempt, at int64, over bool) (undone int) {
	newest := newestOf(attempts, at)
	for i, each := range attempts {
		if each.revision > at && !each.failed {
			undone++
		}
		if each.revision > at || over && each.revision == 0 && i > newest {
			each.failed = true
		}
	}
	return undone
}

// newestOf returns the index of the last attempt that is known to have taken effect by a revision, or -1.
func newestOf(attempts []*attempt, at int64) int {
	newest := -1
	for i, each := range attempts {
		if !each.failed && each.revision > 0 && each.revision <= at && (newest < 0 || each.revision > attempts[newest].revision) {
			newest = i
		}
	}
	return newest
}

// verifyKey returns a description of a key's inconsistency, or an empty string. An attempt without a response may
// have taken effect after later attempts.
func verifyKey(attempts []*attempt, key, mark *mvccpb.KeyValue, at int64) string {
	must := &attempt{token: "nothing"}
	if newest := newestOf(attempts, at); newest >= 0 {
		must = attempts[newest]
	}
	if mark == nil && must.revision == 0 {
		return ""
	}
	if mark == nil {
		return fmt.Sprintf("nothing is there, and %s was acknowledged at revision %d", must.token, must.revision)
	}
	for _, each := range attempts {
		if each.token != string(mark.Value) {
			continue
		}
		switch {
		case each.failed || each.revision > at:
			return fmt.Sprintf("%s is there, which was undone or never done", each.token)
		case each != must && (each.revision != 0 || mark.ModRevision < must.revision):
			return fmt.Sprintf("%s is there, and %s was acknowledged after it at revision %d", mark.Value, must.token, must.revision)
		}
		return each.mismatch(key, mark)
	}
	return fmt.Sprintf("%s is there, which nobody wrote", mark.Value)
}

// mismatch assumes that this attempt was the key's last change, and returns a description of the inconsistency, or an
// empty string.
func (a *attempt) mismatch(key, mark *mvccpb.KeyValue) string {
	if a.revision == 0 {
		a.revision = mark.ModRevision
	}
	switch {
	case mark.ModRevision != a.revision:
		return fmt.Sprintf("%s was done at revision %d, and is there as of %d", a.token, a.revision, mark.ModRevision)
	case a.deletes && key != nil:
		return fmt.Sprintf("%s has deleted it, and %s is there", a.token, key.Value)
	case a.deletes:
		return ""
	case key == nil:
		return fmt.Sprintf("half of the transaction %s is there", a.token)
	case string(key.Value) != a.token || key.ModRevision != a.revision || clientv3.LeaseID(key.Lease) != a.lease:
		return fmt.Sprintf("%s is there as of revision %d with lease %x, and the transaction was %s at revision %d with lease %x",
			key.Value, key.ModRevision, key.Lease, a.token, a.revision, a.lease)
	}
	return ""
}
