package recovery

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// bringBack has the data directory of a configuration prepared and returns the YAML that etcd is to be opened with, which is
// another one for a member that joins a cluster. A configuration that etcd cannot be started with only has the data examined: the
// lifecycle says what is wrong with it.
func (r *Recovery) bringBack(ctx context.Context, config etcdconf.Document, examine func(context.Context) error) ([]byte, error) {
	yaml := config.YAML
	checked, err := etcdconf.Parse(yaml)
	switch {
	case errors.Is(err, bootstrap.ErrCertificates):
		return yaml, err // they are being replaced, perhaps
	case err != nil:
		return yaml, examine(ctx)
	}
	member := MemberOf(checked, config.DataDir)
	others, err := peers.Of(checked.Etcd, r.options.Reach)
	if err != nil {
		return yaml, err
	}
	if others != nil {
		defer others.Close()
		member.Peers = others
	}
	initialCluster, err := r.prepare(ctx, member, examine)
	if err != nil || initialCluster == "" {
		return yaml, err
	}
	return etcdconf.Joining(yaml, initialCluster)
}

// MemberOf finds in etcd's configuration who the member is.
func MemberOf(checked *etcdconf.Checked, dataDir string) Member {
	etcd := checked.Etcd
	member := Member{
		DataDir: dataDir, Name: etcd.Name, PeerURLs: etcd.AdvertisePeerUrls, Token: etcd.InitialClusterToken,
		Joins: etcd.ClusterState == embed.ClusterStateFlagExisting, Forced: etcd.ForceNewCluster,
	}
	cluster, err := types.NewURLsMap(etcd.InitialCluster)
	member.Members = cluster
	if err == nil && len(cluster) == 1 && cluster[etcd.Name] != nil {
		// That is what ids are made of; what is advertised may differ from it.
		member.PeerURLs = cluster[etcd.Name]
		member.Alone = true
	}
	return member
}

// SeedOf is the data directory of the member of a restored cluster that etcd's configuration describes, with all of its
// members.
func SeedOf(yaml []byte, dataDir, token string) (seed.Seed, error) {
	checked, err := etcdconf.Parse(yaml)
	if err != nil {
		return seed.Seed{}, err
	}
	cluster, err := types.NewURLsMap(checked.Etcd.InitialCluster)
	if err != nil {
		return seed.Seed{}, fmt.Errorf("initial-cluster: %w", err)
	}
	return seed.Seed{DataDir: dataDir, Name: checked.Etcd.Name, Token: token, Members: cluster}, nil
}
