package member

import (
	"cmp"
	"os"
	"time"

	layout "go.etcd.io/etcd/server/v3/storage/datadir"

	"etcd-wrapper/member/maintenance"
)

// Maintenance is when the member's database is defragmented. The zero Maintenance is never, but for clients that ask etcd for it.
type Maintenance struct {
	Threshold maintenance.Threshold
	MaxPause  time.Duration // what is expected to take longer is not begun
	// Gate is where those who read the whole database tell of it; nil for one that only clients' snapshots go through.
	Gate     *maintenance.Gate
	Interval time.Duration // how often the database's size is looked at; 0 stands for 10 s
}

func (m *Member) newMaintainer() *maintenance.Maintainer {
	options := m.options.Maintenance
	return maintenance.New(maintenance.Options{
		Threshold: options.Threshold, MaxPause: options.MaxPause, Log: m.options.Log, Gate: cmp.Or(options.Gate, &maintenance.Gate{}),
		Name: m.config.Name, Quota: m.quota(), Active: activePeers, Sending: sendsSnapshot, Interval: options.Interval,
	})
}

// Maintenance is what is known of the maintenance of the database. It may be called from any goroutine.
func (m *Member) Maintenance() maintenance.State { return m.maintainer.State() }

// Defragment has the database defragmented now, whatever the threshold says, and returns at once. The error says why it
// cannot be now. It may be called from any goroutine.
func (m *Member) Defragment() error { return m.maintainer.Trigger() }

// Volume is what is known of the volume that the database lies on. It may be called from any goroutine.
func (m *Member) Volume() maintenance.Volume { return m.maintainer.Volume() }

// Away says why clients should turn to other members now; empty if they need not. It may be called from any goroutine.
func (m *Member) Away() string { return m.maintainer.Away() }

// defragmentAtStart has etcd defragment its database before it serves, if that is worth it and nobody has said otherwise in
// etcd's configuration.
func (m *Member) defragmentAtStart() {
	about, err := os.Stat(layout.ToBackendFileName(m.config.Dir))
	if err != nil || m.config.BootstrapDefragThresholdMegabytes != 0 {
		return
	}
	m.config.BootstrapDefragThresholdMegabytes = m.maintainer.AtStart(layout.ToSnapDir(m.config.Dir), about.Size())
}

// orDefragments tells an etcd that opens its data from one that defragments them first.
func (m *Member) orDefragments(opens string) string {
	if progress := maintenance.StartProgress(layout.ToSnapDir(m.config.Dir)); progress != "" {
		return progress
	}
	return opens
}
