package runtime

import (
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/writer"
	"etcd-wrapper/member"
	"etcd-wrapper/member/leases"
	"etcd-wrapper/readiness/status"
)

// beginLeases renews the leases of a member that has become ready.
func (w *World) beginLeases() {
	if w.leases != nil {
		w.leases.Begin()
	}
}

// endLeases lets the leases be: whoever looks takes the member for lost when it stays away.
func (w *World) endLeases() {
	if w.leases != nil {
		w.leases.End()
	}
}

// LeaseOfMember is what the member's own lease says; false while it knows no leader.
func (w *World) LeaseOfMember() (leases.Member, bool) {
	etcd := w.opening.Load()
	if etcd == nil {
		return leases.Member{}, false
	}
	view, ok := etcd.View()
	if !ok {
		return leases.Member{}, false
	}
	is := leases.Member{Name: view.Name, ID: w.MemberID(), Cluster: view.ClusterID, Leads: view.Leader == w.MemberID()}
	own := slices.IndexFunc(view.Peers, func(p member.Peer) bool { return p.ID == is.ID })
	is.PeerTLS = own >= 0 && slices.ContainsFunc(view.Peers[own].URLs, func(url string) bool { return strings.HasPrefix(url, "https://") })
	return is, view.Leader != ""
}

// LeaseOfBackups is what the leases of snapshots say; false while another member makes the backups, or nobody can.
func (w *World) LeaseOfBackups() (told leases.Backups, ok bool) {
	facts := w.backups.Facts()
	is := facts.Shipped
	if is.Role != writer.Writing || facts.Unable != nil {
		return told, false
	}
	told = leases.Backups{Stored: is.Stored, UpTo: time.Now().Add(-is.BehindFor)}
	if full := lastFull(facts); full != nil {
		told.Full, told.FullTime = full.Revision, full.At
	}
	return told, true
}

// Leases are those that this member renews; nil if it renews none.
func (w *World) Leases() (told []status.Lease) {
	if w.leases == nil {
		return nil
	}
	for _, fact := range w.leases.Facts() {
		lease := status.Lease{Kind: string(fact.Kind), Name: fact.Name, Holder: fact.Holder, Renewed: fact.Renewed}
		if fact.Trouble != nil {
			trouble := status.LeaseTrouble(*fact.Trouble)
			lease.Trouble = &trouble
		}
		told = append(told, lease)
	}
	return told
}
