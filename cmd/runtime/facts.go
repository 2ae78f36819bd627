package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/kubernetes"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

// durations are in nanoseconds; zero for what did not happen. A forced end reads them while the close still runs.
type durations struct{ start, stop, drain atomic.Int64 }

// Durations returns how long etcd took to start, to close and, of that, to drain its clients' streams; zero for what
// did not happen.
func (r *Runtime) Durations() (start, stop, drain time.Duration) {
	load := func(of *atomic.Int64) time.Duration { return time.Duration(of.Load()) }
	return load(&r.durations.start), load(&r.durations.stop), load(&r.durations.drain)
}

// Standalone reports whether the run has no sidecar.
func (r *Runtime) Standalone() bool { return r.flags.Standalone }

// Began returns when the run started.
func (r *Runtime) Began() time.Time { return r.began }

// LastExit returns how the previous run ended: a word of the exit record or of package status, and the reason.
func (r *Runtime) LastExit() (class, reason string) {
	last := r.lastRun.ended()
	return last.class, last.reason
}

// MemberID returns etcd's ID in hexadecimal; empty until etcd is ready.
func (r *Runtime) MemberID() string {
	id, _ := r.memberID.Load().(string)
	return id
}

// Member returns the cluster as etcd sees it; zero while etcd does not run.
func (r *Runtime) Member() state.Member {
	etcd := r.opening.Load()
	if etcd == nil {
		return state.Member{}
	}
	view, _ := etcd.View()
	return view
}

// Progress describes how far etcd's start has come; empty before it was opened.
func (r *Runtime) Progress() string {
	if etcd := r.opening.Load(); etcd != nil {
		return etcd.Doing()
	}
	return ""
}

// Readiness returns the latest report of the monitor.
func (r *Runtime) Readiness() *readiness.Report { return r.monitor.Report() }

// Certificates returns the certificates in use.
func (r *Runtime) Certificates() []status.Certificate { return r.certificates.Now() }

// ConfigOddities returns the warnings about etcd's configuration.
func (r *Runtime) ConfigOddities() (warnings []string) {
	if oddities := r.oddities.Load(); oddities != nil {
		warnings = slices.Clone(*oddities)
	}
	if etcd := r.opening.Load(); etcd != nil {
		if names := etcd.NotJoined(); len(names) > 0 {
			warnings = append(warnings, fmt.Sprintf("initial-cluster names %s, but by etcd's log the cluster has no such member: start it to join; if it "+
				"runs already, this member's data is from before it joined: stop this member and move its data directory away", strings.Join(names, ", ")))
		}
	}
	return warnings
}

// EtcdVersion returns the version of the embedded etcd, which may announce another one to its cluster.
func (*Runtime) EtcdVersion() string { return dataversion.Embedded }

// Maintenance returns the state of the defragmentation; nil before etcd is configured.
func (r *Runtime) Maintenance() *state.Maintenance {
	etcd := r.opening.Load()
	if etcd == nil {
		return nil
	}
	current := etcd.Maintenance()
	return &current
}

// Requests returns the counts of clients' requests since etcd was configured.
func (r *Runtime) Requests() (writes, reads state.Requests) {
	etcd := r.opening.Load()
	if etcd == nil {
		return writes, reads
	}
	return etcd.Requests()
}

// Defragment starts a defragmentation and returns. The error says why it cannot start now.
func (r *Runtime) Defragment() error {
	etcd := r.opening.Load()
	if etcd == nil {
		return errors.New("etcd does not run")
	}
	return etcd.Defragment()
}

// DataVersion returns how far the data are kept at the wanted version; nil before etcd is ready.
func (r *Runtime) DataVersion() *state.DataVersion {
	etcd := r.opening.Load()
	if etcd == nil {
		return nil
	}
	version, ok := etcd.DataVersion()
	if !ok {
		return nil
	}
	return &version
}

// Record reads the exit record as the next start will. The error says why there is no clean one.
func (r *Runtime) Record() (exitcode.Word, error) {
	return exitcode.NewRecord(r.flags.RecordPath()).Read()
}

// beginLeases starts to renew the leases of a member that has become ready.
func (r *Runtime) beginLeases() {
	if r.leases != nil {
		r.leases.Begin()
	}
}

// endLeases stops renewing: a member that stays away counts as lost when its lease expires.
func (r *Runtime) endLeases() {
	if r.leases != nil {
		r.leases.End()
	}
}

// LeaseOfMember returns the content of the member's own lease; false while it knows no leader.
func (r *Runtime) LeaseOfMember() (kubernetes.LeasedMember, bool) {
	etcd := r.opening.Load()
	if etcd == nil {
		return kubernetes.LeasedMember{}, false
	}
	view, ok := etcd.View()
	if !ok {
		return kubernetes.LeasedMember{}, false
	}
	is := kubernetes.LeasedMember{Name: view.Name, ID: r.MemberID(), Cluster: view.ClusterID, Leads: view.Leader == r.MemberID()}
	own := slices.IndexFunc(view.Peers, func(p state.Peer) bool { return p.ID == is.ID })
	is.PeerTLS = own >= 0 && slices.ContainsFunc(view.Peers[own].URLs, func(url string) bool { return strings.HasPrefix(url, "https://") })
	return is, view.Leader != ""
}

// LeaseOfBackups returns the content of the leases of snapshots; false while another member, or none, makes the
// backups.
func (r *Runtime) LeaseOfBackups() (lease kubernetes.LeasedBackups, ok bool) {
	is := r.backups.Published()
	if is.Role != facts.Writer {
		return lease, false
	}
	behind := time.Duration(is.LagSeconds * float64(time.Second))
	lease = kubernetes.LeasedBackups{Stored: is.Revision, UpTo: time.Now().Add(-behind)}
	if full := is.LastFullSnapshot; full != nil {
		lease.Full, lease.FullTime = full.Revision, full.At
	}
	return lease, true
}

// Leases returns the leases that this member renews; nil if it renews none.
func (r *Runtime) Leases() []state.Lease {
	if r.leases == nil {
		return nil
	}
	return r.leases.Facts()
}
