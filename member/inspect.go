package member

import (
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/bootstrap/datadir"
)

// inspect refuses data that etcd would take without a word.
func (m *Member) inspect(found *datadir.Findings) error {
	return found.Inspect(datadir.Identity{
		Name:           m.config.Name,
		PeerURLs:       types.URLs(m.config.AdvertisePeerUrls).StringSlice(),
		InitialCluster: m.config.InitialCluster,
	}, m.options.Log)
}
