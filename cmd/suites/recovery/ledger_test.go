package recovery_test

import (
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// beside is the prefix of a second key, written in the same transaction as the first: it shows which one was last,
// also if that deleted the first.
const beside = "beside/"

// attempt is a change of a key that a client has asked for.
type attempt struct {
	token    string // that no other attempt has
	deletes  bool
	lease    clientv3.LeaseID // 0 for none
	revision int64            // 0 as long as it is not known to be done
	never    bool             // it is known that it was not done, or was undone
}

// ledger is the clients' knowledge: all attempts for each key, in order. One client at a time changes a key.
type ledger struct {
	mu    sync.Mutex
	keys  map[string][]*attempt
	tries int
	acked int
	seen  int64 // the highest revision that a client received
}

func newLedger() *ledger { return &ledger{keys: map[string][]*attempt{}} }

// attempt enters what is about to be asked for.
func (l *ledger) attempt(key string, deletes bool, lease clientv3.LeaseID) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	now := &attempt{token: fmt.Sprintf("%s#%d", key, l.tries), deletes: deletes, lease: lease}
	l.keys[key] = append(l.keys[key], now)
	return now
}

// acknowledge enters that it was done.
func (l *ledger) acknowledge(done *attempt, revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked++
	done.revision = revision
	l.seen = max(l.seen, revision)
}

// observe records a revision that a client received.
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

// found is etcd's content, by key.
type found map[string]*mvccpb.KeyValue

// settle compares the data with what must and may exist at a revision, and returns all differences. For attempts
// with an unknown outcome, it learns what was done; over reports that the rest will not be done any more. undone is how many acknowledged
// changes are no more.
func (l *ledger) settle(have found, at int64, over bool) (wrong []string, undone int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, attempts := range l.keys {
		if complaint := settleKey(attempts, have[key], have[beside+key], at); complaint != "" {
			wrong = append(wrong, fmt.Sprintf("%s at revision %d: %s", key, at, complaint))
		}
		undone += undo(attempts, at, over)
	}
	for key := range have {
		if l.keys[key] == nil && (len(key) <= len(beside) || l.keys[key[len(beside):]] == nil) {
			wrong = append(wrong, key+" was never written")
		}
	}
	return wrong, undone
}

// undo enters what is no more, and what was never done.
func undo(attempts []*attempt, at int64, over bool) (undone int) {
	newest := newestOf(attempts, at)
	for i, each := range attempts {
		if each.revision > at && !each.never {
			undone++
		}
		if each.revision > at || over && each.revision == 0 && i > newest {
			each.never = true
		}
	}
	return undone
}

// newestOf is the index of the last attempt that is known to have been done at a revision; -1 if none is.
func newestOf(attempts []*attempt, at int64) int {
	newest := -1
	for i, each := range attempts {
		if !each.never && each.revision > 0 && each.revision <= at && (newest < 0 || each.revision > attempts[newest].revision) {
			newest = i
		}
	}
	return newest
}

// settleKey returns what is wrong with a key, or nothing. An unacknowledged attempt may have been done
// later than attempts that followed it.
func settleKey(attempts []*attempt, key, mark *mvccpb.KeyValue, at int64) string {
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
		case each.never || each.revision > at:
			return fmt.Sprintf("%s is there, which was undone or never done", each.token)
		case each != must && (each.revision != 0 || mark.ModRevision < must.revision):
			return fmt.Sprintf("%s is there, and %s was acknowledged after it at revision %d", mark.Value, must.token, must.revision)
		}
		return each.mismatch(key, mark)
	}
	return fmt.Sprintf("%s is there, which nobody wrote", mark.Value)
}

// mismatch returns what is wrong with a key that the attempt has changed last.
func (a *attempt) mismatch(key, mark *mvccpb.KeyValue) string {
	if a.revision == 0 {
		a.revision = mark.ModRevision // now it is known
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
