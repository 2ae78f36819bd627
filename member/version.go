package member

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/embed"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/state"
)

// keeping owns the goroutines of a ready member: one keeps the data at the wanted version, one maintains the
// database, one compacts, and one keeps the cluster's entry for the member up to date.
type keeping struct {
	keeper atomic.Pointer[dataversion.Keeper]
	stop   context.CancelFunc
	over   sync.WaitGroup
}

// DataVersion returns the state of the version that the data are kept at; ok is false before the member is ready, and
// if no version is wanted. It may be called from any goroutine.
func (m *Member) DataVersion() (version state.DataVersion, ok bool) {
	keeper := m.keeping.keeper.Load()
	if keeper == nil {
		return state.DataVersion{}, false
	}
	return keeper.State(), true
}

// Unreadable returns why an etcd of the wanted version could not read the data; empty if it could, or none is wanted.
func (m *Member) Unreadable() string {
	version, ok := m.DataVersion()
	if !ok || version.Readable {
		return ""
	}
	return fmt.Sprintf("etcd %s could not read the data: %s", version.Wanted, version.Reason)
}

// announce decides, before etcd is opened, which version it announces. A member that joins waits for its peers there.
func (m *Member) announce(ctx context.Context, found *datadir.Findings) error {
	wanted := m.options.DataVersion
	if wanted == (dataversion.Version{}) {
		return nil
	}
	recorded, err := m.recorded(ctx, found)
	if err != nil {
		return err
	}
	name := dataversion.Announce(wanted, recorded)
	m.options.Log.Info().Str("announced", name).Stringer("wanted", wanted).Stringer("recorded", recorded).
		Msg("etcd announces this version to its cluster")
	return nil
}

// recorded returns the cluster's version as far as this member can know it: from its data, or from the cluster that
// it joins. A new cluster has none. The data are read only if the result makes a difference.
func (m *Member) recorded(ctx context.Context, found *datadir.Findings) (dataversion.Version, error) {
	dir := m.config.WalDir
	if dir == "" {
		dir = layout.ToWALDir(m.config.Dir)
	}
	switch {
	case wal.Exist(dir):
		if m.options.DataVersion != dataversion.Of3_5 {
			return dataversion.Version{}, nil
		}
		return m.readRecorded(found), nil
	case m.config.ClusterState == embed.ClusterStateFlagExisting && m.options.AwaitPeers != nil:
		return m.options.AwaitPeers(ctx, func(reason string) {
			m.doing.Store(reason)
			m.options.Log.Warn().Msg("etcd " + reason)
		})
	default:
		return dataversion.Version{}, nil
	}
}

// readRecorded returns the highest version in the data. It takes data that can't be read for the newest, so that etcd does not
// call itself older than they are.
func (m *Member) readRecorded(found *datadir.Findings) dataversion.Version {
	highest, err := highestVersion(found)
	if err != nil {
		m.options.Log.Warn().Err(err).Msg("the cluster's version could not be read from the data; etcd announces its own")
		return dataversion.Of3_6
	}
	return highest
}

func highestVersion(found *datadir.Findings) (highest dataversion.Version, err error) {
	versions, err := found.ClusterVersions()
	for _, text := range versions {
		if version := dataversion.Parse(text); highest.Less(version) {
			highest = version
		}
	}
	return highest, err
}

// checkUpgrade returns an error if the data are of a cluster that this etcd cannot be a member of. What can't be read is left to
// the checks that follow.
func (m *Member) checkUpgrade(found *datadir.Findings) error {
	recorded, _ := highestVersion(found) // see above
	others := found.Members() > 1 && !found.OnlyRestored() && !m.config.ForceNewCluster
	return dataversion.CheckUpgrade(recorded, others)
}

// keep starts the goroutines of a ready member.
func (m *Member) keep() {
	k := &m.keeping
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	m.files = m.openedFiles()
	k.over.Go(func() { m.watchData(ctx) })
	k.over.Go(func() { m.maintainer.Run(ctx, m.etcd.Server) })
	if m.compaction.retention > 0 {
		k.over.Go(func() { m.compact(ctx) })
	}
	if m.options.FindsPlace {
		k.over.Go(func() { m.findPlace(ctx) })
	}
	if m.options.DataVersion == (dataversion.Version{}) {
		return
	}
	keeper := dataversion.New(m.options.DataVersion, m.etcd.Server, m.options.Log)
	k.keeper.Store(keeper)
	k.over.Go(func() { keeper.Run(ctx) })
}

// end returns when they have ended.
func (k *keeping) end() {
	if k.stop != nil {
		k.stop()
	}
	k.over.Wait()
}
