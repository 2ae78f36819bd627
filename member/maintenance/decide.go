package maintenance

import (
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/internal/gate"
)

// facts are what a decision is made of, as this member sees them at one moment.
type facts struct {
	size, inUse int64 // bytes of the database
	quota       int64 // bytes; 0 if there is no limit
	room        int64 // bytes that are free on the volume; negative if unknown
	self        types.ID
	leader      types.ID // 0 if none is known
	members     []peer   // this one included
	noSpace     bool     // the alarm NOSPACE is raised by a member of the cluster
	ownNoSpace  bool     // it is raised by this one
	corrupt     bool     // the alarm CORRUPT is raised
	sending     bool     // a snapshot is on its way to a member that lags behind
	readers     []gate.Reader
}

// peer is a member of the cluster.
type peer struct {
	id      types.ID
	name    string
	learner bool
	active  bool // there is a connection to it, or it is this member
}

// alone reports whether there is no other member.
func (f facts) alone() bool { return len(f.members) == 1 }

// relief is the part of its quota that a database must come below for the alarm NOSPACE to be lifted.
const relief = 0.9

// relieved reports whether so many bytes are few enough for the alarm NOSPACE to be lifted.
func (f facts) relieved(size int64) bool {
	return f.quota == 0 || float64(size) < relief*float64(f.quota)
}

// worth says why the database should be defragmented; empty if it should not. Where the alarm NOSPACE is raised, whatever
// brings it to an end is worth it.
func (f facts) worth(threshold Threshold) string {
	free := f.size - f.inUse
	switch {
	case threshold.exceeded(f.size, f.inUse):
		return fmt.Sprintf("%s of its %s are free", inWords(free), inWords(f.size))
	case f.ownNoSpace && !f.relieved(f.size) && f.relieved(f.inUse):
		return fmt.Sprintf("the alarm NOSPACE can be lifted once the %s that are free of its %s are given back", inWords(free), inWords(f.size))
	default:
		return ""
	}
}

// limits are what a defragmentation that nobody waits for must keep to.
type limits struct {
	maxPause time.Duration
	expected func(inUse int64) time.Duration
}

// obstacle says what a defragmentation has to wait for, as a sentence's end; empty if nothing is in its way.
func (f facts) obstacle(l limits) string {
	expected := l.expected(f.inUse)
	switch {
	case expected > l.maxPause:
		return fmt.Sprintf("it is expected to take %s, longer than --defrag-max-pause allows, which is %s", rounded(expected), l.maxPause)
	case f.room >= 0 && f.room < f.inUse+spare:
		return fmt.Sprintf("the volume has %s left, and the copy needs %s", inWords(f.room), inWords(f.inUse+spare))
	case f.corrupt:
		return "the alarm CORRUPT is raised"
	case f.leader == 0:
		return "the cluster has no leader"
	}
	if reason := f.withoutQuorum(); reason != "" {
		return reason
	}
	return f.beingRead()
}

// spare is how many bytes more than those in use a copy may need.
const spare = 32 * mebibyte

// beingRead says who reads the whole database.
func (f facts) beingRead() string {
	switch {
	case f.sending:
		return "a snapshot is on its way to a member that lags behind"
	case len(f.readers) > 0:
		return (&gate.BusyError{Readers: f.readers}).Error()
	default:
		return ""
	}
}

// withoutQuorum says why the others would be no quorum; empty if they are one, or there are none.
func (f facts) withoutQuorum() string {
	if f.alone() {
		return ""
	}
	voters, others := 0, 0
	var missing []string
	for _, p := range f.members {
		if p.learner {
			continue
		}
		voters++
		switch {
		case p.id == f.self:
		case p.active:
			others++
		default:
			missing = append(missing, p.name)
		}
	}
	switch quorum := voters/2 + 1; {
	case others >= quorum:
		return ""
	case len(missing) == 0:
		return fmt.Sprintf("a cluster of %d voting members has no quorum without this one", voters)
	default:
		return "without this member the others would be no quorum: there is no connection to " + strings.Join(missing, ", ")
	}
}

func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
