package member

import (
	"cmp"
	"os"
	"time"

	layout "go.etcd.io/etcd/server/v3/storage/datadir"

	"etcd-wrapper/member/maintenance"
	"etcd-wrapper/member/state"
)

// Maintenance says when the member's database is defragmented. The zero Maintenance means never, except on request of
// a client.
type Maintenance struct {
	Threshold maintenance.Threshold
	MaxPause  time.Duration // a defragmentation that is expected to take longer is not started
	// where readers of the whole database register; nil for one that only clients' snapshots use
	Gate     *maintenance.Gate
	Interval time.Duration // between two checks of the database's size; 0 means 10 s
}

func (m *Member) newMaintainer() *maintenance.Maintainer {
	options := m.options.Maintenance
	return maintenance.New(maintenance.Options{
		Threshold: options.Threshold, MaxPause: options.MaxPause, Log: m.options.Log, Gate: cmp.Or(options.Gate, &maintenance.Gate{}),
		Name: m.config.Name, Quota: m.quota(), Active: activePeers, Sending: sendsSnapshot, Interval: options.Interval,
	})
}

// Maintenance returns the state of the maintenance. It may be called from any goroutine.
func (m *Member) Maintenance() state.Maintenance { return m.maintainer.State() }

// Defragment starts a defragmentation regardless of the threshold, and returns. The error says why it cannot start
// now. It may be called from any goroutine.
func (m *Member) Defragment() error { return m.maintainer.Trigger() }

// Volume returns the state of the volume that holds the database. It may be called from any goroutine.
func (m *Member) Volume() maintenance.Volume { return m.maintainer.Volume() }

// Away returns why clients should use other members now; empty if they need not. It may be called from any goroutine.
func (m *Member) Away() string { return m.maintainer.Away() }

// defragmentAtStart makes etcd defragment its database before it serves, if that is worth it and etcd's configuration
// does not say otherwise.
func (m *Member) defragmentAtStart() {
	about, err := os.Stat(layout.ToBackendFileName(m.config.Dir))
	if err != nil || m.config.BootstrapDefragThresholdMegabytes != 0 {
		return
	}
	m.config.BootstrapDefragThresholdMegabytes = m.maintainer.AtStart(layout.ToSnapDir(m.config.Dir), about.Size())
}

// orDefragments describes an etcd that opens its data, or defragments them first.
func (m *Member) orDefragments(opens string) string {
	if progress := maintenance.StartProgress(layout.ToSnapDir(m.config.Dir)); progress != "" {
		return progress
	}
	return opens
}
