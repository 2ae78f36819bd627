package kubernetes

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// The kinds of leases.
const (
	OfMember = "member"
	OfFull   = "full_snapshot"
	OfDelta  = "delta_snapshot"
)

const (
	// heartbeat is the interval at which a member renews its lease: the operator considers a member lost after a
	// minute.
	heartbeat = 10 * time.Second
	// deltaPeriod is the interval at which the leases of snapshots are checked. It is the sidecar's default interval
	// of delta snapshots; the operator's tools allow for twice the interval they know of.
	deltaPeriod = 20 * time.Second
	// tries bounds the attempts to update a lease that others update at the same time.
	tries = 3
)

// LeasedMember is the content of a member's own lease.
type LeasedMember struct {
	Name    string // of the member and of the lease
	ID      string // hexadecimal
	Cluster string // ID of the cluster, hexadecimal
	Leads   bool
	PeerTLS bool // peers connect to it with TLS
}

// peerTLS is the annotation that the operator waits for before it makes members require TLS from each other.
const peerTLS = "member.etcd.gardener.cloud/tls-enabled"

func (m LeasedMember) holder() string {
	role := "Member"
	if m.Leads {
		role = "Leader"
	}
	return m.ID + ":" + m.Cluster + ":" + role
}

// LeasedBackups is the content of the leases of snapshots, which the writer of backups renews.
type LeasedBackups struct {
	Full     int64     // revision of the newest full snapshot; 0 if there is none
	FullTime time.Time // of its content
	Stored   int64     // newest revision in the store; 0 if there is none
	UpTo     time.Time // all writes acknowledged by then are in the store
}

// duty is one lease, the function that renews it, and the time when it is due.
type duty struct {
	kind  string
	every time.Duration
	renew func(ctx context.Context) (written, error)
	due   time.Time
	pause backoff.BackOff // after a failure
}

// written is the current content of a lease.
type written struct{ name, holder string }

// errNotOurs means that another member renews a lease, or that no member can.
var errNotOurs = errors.New("it is not for this member to renew")

var (
	errNoLeader = errors.New("this member knows no leader")
	errOthers   = errors.New("its holderIdentity is no revision: another program uses this lease")
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

// member renews the member's own lease. No one else writes it, so it is not read first.
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

// full writes the newest full snapshot. A lease with a later revision stays unchanged.
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

// delta writes the newest revision in the store. As with a sidecar, the revision never decreases. While the store
// lags, the time does not change.
func (l *Leases) delta(ctx context.Context) (written, error) {
	is, ok := l.options.Backups()
	if !ok || is.Stored == 0 {
		return written{}, errNotOurs
	}
	return l.snapshot(ctx, l.options.Cluster+"-delta-snap", func(revision int64, _ time.Time) (now leaseSpec, wanted bool) {
		return leaseSpec{HolderIdentity: strconv.FormatInt(max(revision, is.Stored), 10), RenewTime: microTime{is.UpTo}}, true
	})
}

// snapshot changes a lease that another member may write at the same time.
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
	return written{name: name}, errors.New("other members keep updating it")
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
