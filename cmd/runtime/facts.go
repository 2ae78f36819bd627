package runtime

import (
	"errors"
	"fmt"
	"runtime"
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

// durations holds the durations of phases in nanoseconds; phases that were not reached have the duration 0. The
// fields are atomic because a forced exit reads them while etcd is still being closed.
type durations struct{ start, stop, drain atomic.Int64 }

// Durations returns how long etcd took to start and to stop, and how much of the stop was spent on draining streams.
// Phases that were not reached have the duration 0.
func (r *Runtime) Durations() (start, stop, drain time.Duration) {
	load := func(of *atomic.Int64) time.Duration { return time.Duration(of.Load()) }
	return load(&r.durations.start), load(&r.durations.stop), load(&r.durations.drain)
}

// Document returns the runtime's part of the status document, which is everything except the lifecycle, the checks
// and the timeline.
func (r *Runtime) Document() status.Document {
	last := r.lastRun.ended()
	document := status.Document{
		Standalone: r.flags.Standalone, Started: r.began, LastExit: last.class, LastExitReason: last.reason, MemberID: r.id(),
		Versions:     status.Versions{Etcd: dataversion.Embedded, Go: runtime.Version()},
		Certificates: r.certificates.List(), Recovery: r.recoveryStatus(),
	}
	if warnings := r.configWarnings.Load(); warnings != nil {
		document.ConfigWarnings = slices.Clone(*warnings)
	}
	if r.parts.Backups != nil {
		document.Backup = r.parts.Backups.Published()
	}
	if r.parts.Leases != nil {
		document.Leases = r.parts.Leases.States()
	}
	etcd := r.etcd.Load()
	if etcd == nil {
		return document
	}
	document.Member, _ = etcd.View()
	maintenance := etcd.Maintainer.State()
	document.Maintenance = &maintenance
	if version, ok := etcd.DataVersion(); ok {
		document.DataVersion = &version
	}
	if names := etcd.NotJoined(); len(names) > 0 {
		document.ConfigWarnings = append(document.ConfigWarnings, fmt.Sprintf("initial-cluster lists members that this member does not know: %s; start them; "+
			"if they are already running, this member's data is outdated: stop this member and move its data directory aside", strings.Join(names, ", ")))
	}
	return document
}

// id returns the member ID in hexadecimal, or an empty string until etcd is ready.
func (r *Runtime) id() string {
	id, _ := r.memberID.Load().(string)
	return id
}

// Progress describes how far etcd's start or stop has progressed. Before etcd is opened, Progress returns an empty
// string.
func (r *Runtime) Progress() string {
	if etcd := r.etcd.Load(); etcd != nil {
		return etcd.Doing()
	}
	return ""
}

// Readiness returns the monitor's latest report.
func (r *Runtime) Readiness() *readiness.Report { return r.monitor.Report() }

// Requests returns the number of client requests since etcd was configured.
func (r *Runtime) Requests() (writes, reads state.Requests) {
	etcd := r.etcd.Load()
	if etcd == nil {
		return writes, reads
	}
	return etcd.Requests()
}

// Defragment starts a defragmentation and returns without waiting for it. The error explains why a defragmentation
// cannot start now.
func (r *Runtime) Defragment() error {
	etcd := r.etcd.Load()
	if etcd == nil {
		return errors.New("etcd is not running")
	}
	return etcd.Maintainer.Trigger()
}

// Record reads the exit record in the same way as the next start. If there is no clean record, Record returns an
// error.
func (r *Runtime) Record() (exitcode.Word, error) {
	return exitcode.NewRecord(r.flags.RecordPath()).Read()
}

// LeaseOfMember returns the content of the member's Lease, or false while the member has no leader.
func (r *Runtime) LeaseOfMember() (kubernetes.MemberLease, bool) {
	etcd := r.etcd.Load()
	if etcd == nil {
		return kubernetes.MemberLease{}, false
	}
	view, ok := etcd.View()
	if !ok {
		return kubernetes.MemberLease{}, false
	}
	lease := kubernetes.MemberLease{Name: view.Name, ID: r.id(), Cluster: view.ClusterID, Leads: view.Leader == r.id()}
	own := slices.IndexFunc(view.Peers, func(p state.Peer) bool { return p.ID == lease.ID })
	lease.PeerTLS = own >= 0 && slices.ContainsFunc(view.Peers[own].URLs, func(url string) bool { return strings.HasPrefix(url, "https://") })
	return lease, view.Leader != ""
}

// LeaseOfBackups returns the content of the Leases for full and delta snapshots, or false if this member is not the
// backup writer.
func (r *Runtime) LeaseOfBackups() (lease kubernetes.BackupLeases, ok bool) {
	backups := r.parts.Backups.Published()
	if backups.Role != facts.Writer {
		return lease, false
	}
	behind := time.Duration(backups.LagSeconds * float64(time.Second))
	lease = kubernetes.BackupLeases{Stored: backups.Revision, UpTo: time.Now().Add(-behind)}
	if full := backups.LastFullSnapshot; full != nil {
		lease.Full, lease.FullTime = full.Revision, full.At
	}
	return lease, true
}
