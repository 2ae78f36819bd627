package kubernetes

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// LeaseKind is which of the leases one is.
type LeaseKind string

// The kinds.
const (
	OfMember LeaseKind = "member"
	OfFull   LeaseKind = "full_snapshot"
	OfDelta  LeaseKind = "delta_snapshot"
)

const (
	// heartbeat is how often a member's lease is renewed: the operator takes a member for lost after a minute.
	heartbeat = 10 * time.Second
	// deltaPeriod is how often the leases of snapshots are looked at. So often a sidecar makes a delta unless it is told
	// otherwise; the operator's tools allow for twice the period that they know of.
	deltaPeriod = 20 * time.Second
	// tries is how often a renewal that others were in the way of is begun anew at once.
	tries = 3
)

// LeasedMember is what a member's own lease says of it.
type LeasedMember struct {
	Name    string // of the member, and of the lease
	ID      string // hexadecimal
	Cluster string // its ID, hexadecimal
	Leads   bool
	PeerTLS bool // its peers reach it over TLS
}

// peerTLS is the annotation that the operator waits for before it has members demand TLS of each other.
const peerTLS = "member.etcd.gardener.cloud/tls-enabled"

func (m LeasedMember) holder() string {
	role := "Member"
	if m.Leads {
		role = "Leader"
	}
	return m.ID + ":" + m.Cluster + ":" + role
}

// LeasedBackups is what the leases of snapshots say, which the member renews that makes them.
type LeasedBackups struct {
	Full     int64     // revision of the newest full; 0 if there is none
	FullTime time.Time // of its content
	Stored   int64     // the newest revision in the store; 0 if none is
	UpTo     time.Time // everything that etcd had then is in the store
}

// duty is one lease, what renews it, and when that is due.
type duty struct {
	kind  LeaseKind
	every time.Duration
	renew func(ctx context.Context) (written, error)
	due   time.Time
	pause backoff.BackOff // after a failure
}

// written is what a lease says now.
type written struct{ name, holder string }

// errNotOurs says that another member renews a lease, or that nobody can.
var errNotOurs = errors.New("it is not for this member to renew")

var (
	errNoLeader = errors.New("this member knows no leader")
	errOthers   = errors.New("its holderIdentity is no revision: somebody else uses this lease")
)

func (l *Leases) duties() []*duty {
	all := []*duty{{kind: OfMember, every: heartbeat, renew: l.member, pause: newPause()}}
	if l.options.Backups == nil {
		return all
	}
	return append(all,
		&duty{kind: OfFull, every: deltaPeriod, renew: l.full, pause: newPause()},
		&duty{kind: OfDelta, every: deltaPeriod, renew: l.delta, pause: newPause()})
}

// member renews the member's own lease. Nobody else writes it, so nothing is read before.
func (l *Leases) member(ctx context.Context) (written, error) {
	is, ok := l.options.Member()
	now := written{is.Name, is.holder()}
	if !ok {
		return now, errNoLeader
	}
	return now, l.server.Patch(ctx, leaseObjects, now.name, lease{
		Metadata: leaseMetadata{Annotations: map[string]string{peerTLS: strconv.FormatBool(is.PeerTLS)}},
		Spec:     leaseSpec{HolderIdentity: now.holder, RenewTime: microTime{time.Now()}},
	})
}

// full tells of the newest full. A lease that names a later revision stays as it is.
func (l *Leases) full(ctx context.Context) (written, error) {
	is, ok := l.options.Backups()
	if !ok || is.Full == 0 {
		return written{}, errNotOurs
	}
	return l.snapshot(ctx, l.options.Cluster+"-full-snap", func(revision int64, of time.Time) (now leaseSpec, wanted bool) {
		wanted = revision < is.Full || revision == is.Full && of.Before(is.FullTime.Truncate(time.Microsecond))
		return leaseSpec{HolderIdentity: strconv.FormatInt(is.Full, 10), RenewTime: microTime{is.FullTime}}, wanted
	})
}

// delta tells how far the store is. A revision never goes back, as with a sidecar; the time of a store that is behind stands
// still.
func (l *Leases) delta(ctx context.Context) (written, error) {
	is, ok := l.options.Backups()
	if !ok || is.Stored == 0 {
		return written{}, errNotOurs
	}
	return l.snapshot(ctx, l.options.Cluster+"-delta-snap", func(revision int64, _ time.Time) (now leaseSpec, wanted bool) {
		return leaseSpec{HolderIdentity: strconv.FormatInt(max(revision, is.Stored), 10), RenewTime: microTime{is.UpTo}}, true
	})
}

// snapshot changes a lease that another member may have written a moment ago, or writes at this moment.
func (l *Leases) snapshot(ctx context.Context, name string, change func(revision int64, of time.Time) (now leaseSpec, wanted bool)) (written, error) {
	for range tries {
		var found lease
		if err := l.server.Get(ctx, leaseObjects, name, &found); err != nil {
			return written{name: name}, err
		}
		there, err := revision(found.Spec.HolderIdentity)
		if err != nil {
			return written{name: name}, err
		}
		now, wanted := change(there, found.Spec.RenewTime.Time)
		if !wanted {
			return written{name, found.Spec.HolderIdentity}, nil
		}
		err = l.server.Patch(ctx, leaseObjects, name, lease{Metadata: leaseMetadata{ResourceVersion: found.Metadata.ResourceVersion}, Spec: now})
		if !IsConflict(err) {
			return written{name, now.HolderIdentity}, err
		}
	}
	return written{name: name}, errors.New("others write it all the time")
}

func revision(holder string) (int64, error) {
	if holder == "" {
		return 0, nil
	}
	number, err := strconv.ParseInt(holder, 10, 64)
	if err != nil {
		return 0, errOthers
	}
	return number, nil
}
