package maintenance

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"etcd-wrapper/member/state"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// facts is a snapshot of the member's and the cluster's state. All decisions are based on it.
type facts struct {
	size, inUse int64 // size of the database file and of the data in it, in bytes
	quota       int64 // in bytes; 0 if there is no limit
	room        int64 // free space on the volume in bytes; negative if unknown
	volume      int64 // size of the volume in bytes; negative if unknown
	self        types.ID
	leader      types.ID   // 0 if unknown
	members     []peer     // all members, including this one
	full        []types.ID // members that raised the NOSPACE alarm, sorted by ID
	corrupt     bool       // the CORRUPT alarm is raised
	sending     bool       // a snapshot is being sent to another member
	readers     []state.DatabaseReader
}

// peer is a member of the cluster; it may be this member.
type peer struct {
	id      types.ID
	name    string
	learner bool
	active  bool // this member is connected to the peer; always true if the peer is this member
}

// isSingle reports whether the cluster has only one member.
func (f facts) isSingle() bool { return len(f.members) == 1 }

// noSpace reports whether any member has raised the NOSPACE alarm; raisedNoSpace reports whether this member has.
func (f facts) noSpace() bool       { return len(f.full) > 0 }
func (f facts) raisedNoSpace() bool { return slices.Contains(f.full, f.self) }

// leasesDisabled reports whether an alarm prevents etcd from granting leases, and therefore claims.
func (f facts) leasesDisabled() bool { return f.noSpace() || f.corrupt }

// isMember reports whether id is a member of the cluster.
func (f facts) isMember(id types.ID) bool {
	return slices.ContainsFunc(f.members, func(p peer) bool { return p.id == id })
}

// reliefRatio is the fraction of the quota below which the NOSPACE alarm may be disarmed.
const reliefRatio = 0.9

// canDisarm reports whether the NOSPACE alarm may be disarmed with a database of this size.
func (f facts) canDisarm(size int64) bool {
	return f.quota == 0 || float64(size) < reliefRatio*float64(f.quota)
}

// reason returns why the database should be defragmented, or "" if it should not. The threshold is ignored if
// defragmentation would allow the NOSPACE alarm to be disarmed.
func (f facts) reason(threshold Threshold) string {
	free := f.size - f.inUse
	switch {
	case threshold.matches(f.size, f.inUse):
		return fmt.Sprintf("%s of the %s database is free", formatSize(free), formatSize(f.size))
	case f.raisedNoSpace() && !f.canDisarm(f.size) && f.canDisarm(f.inUse):
		return fmt.Sprintf("the NOSPACE alarm can be disarmed after defragmentation frees %s of the %s database", formatSize(free), formatSize(f.size))
	default:
		return ""
	}
}

// blockReason returns why a defragmentation cannot start now, or "" if it can.
func (f facts) blockReason(expected, maxPause time.Duration) string {
	switch {
	case expected > maxPause:
		return fmt.Sprintf("the defragmentation is expected to take %s, longer than pause=%s in --defrag-threshold", expected.Round(100*time.Millisecond), maxPause)
	case f.room >= 0 && f.room < f.inUse+copyReserve:
		return fmt.Sprintf("the volume has only %s free and the copy needs %s", formatSize(f.room), formatSize(f.inUse+copyReserve))
	case f.corrupt:
		return "the CORRUPT alarm is raised"
	case f.leader == 0:
		return "the cluster has no leader"
	}
	if reason := f.quorumReason(); reason != "" {
		return reason
	}
	return f.readReason()
}

// copyReserve is the number of bytes that a copy of the database may need beyond the bytes in use.
const copyReserve = 32 * mebibyte

// readReason describes the readers of the whole database, or returns "" if there are none.
func (f facts) readReason() string {
	switch {
	case f.sending:
		return "a snapshot is being sent to another member"
	case len(f.readers) > 0:
		return describeReaders(f.readers)
	default:
		return ""
	}
}

// quorumReason returns why there would be no quorum without this member, or "" if there would be one or this is the
// only member.
func (f facts) quorumReason() string {
	if f.isSingle() {
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
		return fmt.Sprintf("a cluster of %d voting members has no quorum without this member", voters)
	default:
		return "the other members would have no quorum without this one: no connection to " + strings.Join(missing, ", ")
	}
}

// Threshold is the amount of free space in the database at which it is defragmented. The zero Threshold disables
// defragmentation unless the NOSPACE alarm is raised.
type Threshold struct {
	Free float64 // minimum fraction of the file that must be free, from 0 to 1
	Min  int64   // minimum number of bytes that must be free
}

// matches reports whether a database of the given size, of which inUse bytes are in use, has reached the threshold.
func (t Threshold) matches(size, inUse int64) bool {
	free := size - inUse
	return t != (Threshold{}) && free > 0 && free >= t.Min && float64(free) >= t.Free*float64(size)
}

// AtStart returns the value of etcd's bootstrap-defrag-threshold-megabytes setting that applies the threshold to a
// database of the given size in dir. It returns 0, which disables the setting, if the threshold is zero or cannot be
// reached, or if the defragmentation could take too long or fill up the volume. A failed defragmentation would prevent
// the start of etcd.
func (k *Maintainer) AtStart(dir string, size int64) uint {
	t := k.options.Threshold
	needed := max(t.Min, int64(t.Free*float64(size)))
	kept := size - needed // maximum number of bytes in use at which the threshold is reached
	left, _ := space(dir)
	if t == (Threshold{}) || kept < 0 || left < 0 || left < size+copyReserve || k.estimator.expected(kept) > k.options.MaxPause {
		return 0
	}
	return uint(max(1, (needed+mebibyte-1)/mebibyte))
}

// StartProgress describes the progress of the defragmentation that etcd performs at startup, or returns "" if none is
// running.
func StartProgress(dir string) string {
	if done := copySize(dir); done > 0 {
		return "defragmenting the database before serving clients: " + formatSize(done) + " copied"
	}
	return ""
}

const mebibyte = 1 << 20

// formatSize formats a number of bytes in KiB, MiB or GiB.
func formatSize(count int64) string {
	switch {
	case count < mebibyte:
		return fmt.Sprintf("%d KiB", count>>10)
	case count < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(count)/mebibyte)
	default:
		return fmt.Sprintf("%.1f GiB", float64(count)/(1<<30))
	}
}

// defaultPace is the speed, in bytes per second, that is assumed until the first measurement: half of what two slow
// cores with an average cloud disk achieve.
const defaultPace = 100 * mebibyte

// minMeasured is the number of bytes that must be in use for a meaningful measurement of the speed.
const minMeasured = 16 * mebibyte

// estimator estimates the duration of a defragmentation from the speed of the last one.
type estimator struct{ measured atomic.Int64 } // bytes in use per second; 0 before the first measurement

func (p *estimator) perSecond() int64 {
	if measured := p.measured.Load(); measured > 0 {
		return measured
	}
	return defaultPace
}

// expected returns the expected duration of a defragmentation that copies inUse bytes of data.
func (p *estimator) expected(inUse int64) time.Duration {
	return time.Duration(float64(inUse) / float64(p.perSecond()) * float64(time.Second))
}

// record measures the speed of a defragmentation that copied inUse bytes. It ignores small databases.
func (p *estimator) record(inUse int64, took time.Duration) {
	if inUse >= minMeasured && took > 0 {
		p.measured.Store(max(1, int64(float64(inUse)/took.Seconds())))
	}
}
