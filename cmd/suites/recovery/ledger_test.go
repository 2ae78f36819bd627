package recovery_test

import (
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// markPrefix is the prefix of a second key, the mark, that each attempt puts in the same transaction. The mark
// identifies the last attempt that took effect, even if this attempt deleted the first key.
const markPrefix = "mark/"

// An attempt is a change to a key that a client has requested.
type attempt struct {
	token    string // unique value that the attempt writes
	deletes  bool
	lease    clientv3.LeaseID // 0 for no lease
	revision int64            // revision at which the attempt took effect; 0 if unknown
	failed   bool             // the attempt has had no effect or was rolled back
}

// A ledger records, in order, all of the clients' attempts to change keys. Each key is changed by only one client at
// a time.
type ledger struct {
	mu    sync.Mutex
	keys  map[string][]*attempt
	count int   // number of attempts
	acked int   // number of acknowledged attempts
	seen  int64 // highest revision that any client has received
}

func newLedger() *ledger { return &ledger{keys: map[string][]*attempt{}} }

// attempt records a change before it is requested.
func (l *ledger) attempt(key string, deletes bool, lease clientv3.LeaseID) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	now := &attempt{token: fmt.Sprintf("%s#%d", key, l.count), deletes: deletes, lease: lease}
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

// verify compares etcd's contents at a revision with the changes that must or may have taken effect by then, and
// returns a description of each violation. It also records the outcome of unacknowledged attempts. If final is set,
// none of these attempts can still take effect. undone is the number of acknowledged changes that were rolled back.
func (l *ledger) verify(have contents, at int64, final bool) (wrong []string, undone int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, attempts := range l.keys {
		if violation := verifyKey(attempts, have[key], have[markPrefix+key], at); violation != "" {
			wrong = append(wrong, fmt.Sprintf("%s at revision %d: %s", key, at, violation))
		}
		undone += markUndone(attempts, at, final)
	}
	for key := range have {
		if l.keys[key] == nil && (len(key) <= len(markPrefix) || l.keys[key[len(markPrefix):]] == nil) {
			wrong = append(wrong, key+" was never written")
		}
	}
	return wrong, undone
}

// markUndone marks the attempts that were rolled back or can no longer take effect as failed, and returns how many of
// them had been acknowledged.
func markUndone(attempts []*attempt, at int64, final bool) (undone int) {
	newest := newestOf(attempts, at)
	for i, each := range attempts {
		if each.revision > at && !each.failed {
			undone++
		}
		if each.revision > at || final && each.revision == 0 && i > newest {
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

// verifyKey returns a description of the violation if a key and its mark are inconsistent with the attempts, and an
// empty string otherwise. An attempt without a response may have taken effect after attempts that were made later.
func verifyKey(attempts []*attempt, key, mark *mvccpb.KeyValue, at int64) string {
	newest := &attempt{token: "nothing"}
	if i := newestOf(attempts, at); i >= 0 {
		newest = attempts[i]
	}
	if mark == nil && newest.revision == 0 {
		return ""
	}
	if mark == nil {
		return fmt.Sprintf("the key does not exist, but %s was acknowledged at revision %d", newest.token, newest.revision)
	}
	for _, each := range attempts {
		if each.token != string(mark.Value) {
			continue
		}
		switch {
		case each.failed || each.revision > at:
			return fmt.Sprintf("has the value %s, which was rolled back or never took effect", each.token)
		case each != newest && (each.revision != 0 || mark.ModRevision < newest.revision):
			return fmt.Sprintf("has the value %s, but %s was acknowledged later, at revision %d", mark.Value, newest.token, newest.revision)
		}
		return each.mismatch(key, mark)
	}
	return fmt.Sprintf("has the unknown value %s", mark.Value)
}

// mismatch returns a description of the violation if a key and its mark are inconsistent with this attempt, which was
// the last to take effect, and an empty string otherwise.
func (a *attempt) mismatch(key, mark *mvccpb.KeyValue) string {
	if a.revision == 0 {
		a.revision = mark.ModRevision
	}
	switch {
	case mark.ModRevision != a.revision:
		return fmt.Sprintf("%s took effect at revision %d, but has revision %d", a.token, a.revision, mark.ModRevision)
	case a.deletes && key != nil:
		return fmt.Sprintf("%s deleted the key, but it has the value %s", a.token, key.Value)
	case a.deletes:
		return ""
	case key == nil:
		return fmt.Sprintf("only half of the transaction %s took effect", a.token)
	case string(key.Value) != a.token || key.ModRevision != a.revision || clientv3.LeaseID(key.Lease) != a.lease:
		return fmt.Sprintf("has the value %s at revision %d with lease %x, but the transaction wrote %s at revision %d with lease %x",
			key.Value, key.ModRevision, key.Lease, a.token, a.revision, a.lease)
	}
	return ""
}
