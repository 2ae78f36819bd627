package member

import (
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/bootstrap/datadir"
)

// inspect refuses data that etcd would take without a word. With a log elsewhere nothing can be told.
func (m *Member) inspect() error {
	if m.config.WalDir != "" {
		return nil
	}
	return datadir.Inspect(m.config.Dir, datadir.Identity{
		Name:           m.config.Name,
		PeerURLs:       types.URLs(m.config.AdvertisePeerUrls).StringSlice(),
		InitialCluster: m.config.InitialCluster,
	}, m.options.Log)
}
