package maintenance

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// facts are what a decision is made of, as this member sees them at one moment.
type facts struct {
	size, inUse int64 // bytes of the database
	quota       int64 // bytes; 0 if there is no limit
	room        int64 // bytes that are free on the volume; negative if unknown
	volume      int64 // bytes of the volume, the same
	self        types.ID
	leader      types.ID   // 0 if none is known
	members     []peer     // this one included
	full        []types.ID // the members that have raised the alarm NOSPACE, in order
	corrupt     bool       // the alarm CORRUPT is raised
	sending     bool       // a snapshot is on its way to a member that lags behind
	readers     []Reader
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

// noSpace reports whether the alarm NOSPACE is raised, and noSpaceHere whether this member has raised it.
func (f facts) noSpace() bool     { return len(f.full) > 0 }
func (f facts) noSpaceHere() bool { return slices.Contains(f.full, f.self) }

// grantsNoLease reports whether etcd refuses what members say to each other.
func (f facts) grantsNoLease() bool { return f.noSpace() || f.corrupt }

// gone are those that have raised it and are members no more.
func (f facts) gone() (all []types.ID) {
	for _, id := range f.full {
		if !slices.ContainsFunc(f.members, func(p peer) bool { return p.id == id }) {
			all = append(all, id)
		}
	}
	return all
}

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
	case f.noSpaceHere() && !f.relieved(f.size) && f.relieved(f.inUse):
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
		return fmt.Sprintf("it is expected to take %s, longer than the pause= of --defrag-threshold allows, which is %s", rounded(expected), l.maxPause)
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
		return (&BusyError{Readers: f.readers}).Error()
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

// Threshold says how much of a database must be free before it is defragmented. The zero Threshold means never, unless
// the alarm NOSPACE is raised.
type Threshold struct {
	Free float64 // the part of the file that is free, from 0 to 1
	Min  int64   // bytes that are free
}

// exceeded reports whether a file of size bytes, of which inUse hold data, is worth a defragmentation.
func (t Threshold) exceeded(size, inUse int64) bool {
	free := size - inUse
	return t != (Threshold{}) && free > 0 && free >= t.Min && float64(free) >= t.Free*float64(size)
}

// AtStart is what etcd's setting bootstrap-defrag-threshold-megabytes, the mebibytes that must be free in a file for etcd to
// defragment it before it serves, has to be so that a database of size bytes, in a directory, is treated by the threshold; 0
// turns it off. It is 0, too, where the copy would find too little room on the volume, since etcd does not start when its
// defragmentation fails, and where it could be expected to take longer than the longest pause.
func (k *Maintainer) AtStart(dir string, size int64) uint {
	t := k.options.Threshold
	needed := max(t.Min, int64(t.Free*float64(size)))
	kept := size - needed // at most, if etcd defragments at all
	left, _ := space(dir)
	if t == (Threshold{}) || kept < 0 || left < 0 || left < size+spare || k.pace.expected(kept) > k.options.MaxPause {
		return 0
	}
	return uint(max(1, (needed+mebibyte-1)/mebibyte))
}

// AtStartCopied says how far etcd's defragmentation before it serves has come, as a clause about etcd; empty if there is none.
func AtStartCopied(dir string) string {
	if done := copied(dir); done > 0 {
		return "defragments its database before it serves: " + inWords(done) + " are copied"
	}
	return ""
}

const mebibyte = 1 << 20

// inWords is a size for people.
func inWords(count int64) string {
	switch {
	case count < mebibyte:
		return fmt.Sprintf("%d KiB", count>>10)
	case count < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(count)/mebibyte)
	default:
		return fmt.Sprintf("%.1f GiB", float64(count)/(1<<30))
	}
}

// firstPace is what a defragmentation is expected to copy in a second before one was measured: half of what two slow cores
// and an average disk of a cloud do.
const firstPace = 100 * mebibyte

// worthMeasuring is how many bytes must have been copied for the pace to say something.
const worthMeasuring = 16 * mebibyte

// pace is how fast this member defragments, in bytes in use per second.
type pace struct{ measured atomic.Int64 }

func (p *pace) perSecond() int64 {
	if measured := p.measured.Load(); measured > 0 {
		return measured
	}
	return firstPace
}

// expected is how long it takes to defragment so many bytes in use.
func (p *pace) expected(inUse int64) time.Duration {
	return time.Duration(float64(inUse) / float64(p.perSecond()) * float64(time.Second))
}

// learn takes in how long one took.
func (p *pace) learn(inUse int64, took time.Duration) {
	if inUse >= worthMeasuring && took > 0 {
		p.measured.Store(max(1, int64(float64(inUse)/took.Seconds())))
	}
}
