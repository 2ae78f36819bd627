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

// bringBack prepares the data directory of a configuration and returns the YAML to start etcd with, which differs for
// a member that joins a cluster. For a configuration that etcd cannot use only the data are examined; the lifecycle
// reports what is wrong with it.
func (r *Recovery) bringBack(ctx context.Context, config etcdconf.Document, examine func(context.Context) error) ([]byte, error) {
	yaml := config.YAML
	checked, err := etcdconf.Parse(yaml)
	switch {
	case errors.Is(err, bootstrap.ErrCertificates):
		return yaml, err // they may be about to be replaced
	case err != nil:
		return yaml, examine(ctx)
	}
	member := MemberOf(checked, config.DataDir)
	others, err := peers.New(checked.Etcd, r.options.Reach)
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

// MemberOf returns the member that etcd's configuration describes.
func MemberOf(checked *etcdconf.Checked, dataDir string) Member {
	etcd := checked.Etcd
	member := Member{
		DataDir: dataDir, Name: etcd.Name, PeerURLs: etcd.AdvertisePeerUrls, Token: etcd.InitialClusterToken,
		Joins: etcd.ClusterState == embed.ClusterStateFlagExisting, Forced: etcd.ForceNewCluster,
	}
	cluster, err := types.NewURLsMap(etcd.InitialCluster)
	member.Members = cluster
	if err == nil && len(cluster) == 1 && cluster[etcd.Name] != nil {
		// etcd computes IDs from this; the advertised URLs may differ.
		member.PeerURLs = cluster[etcd.Name]
		member.Alone = true
	}
	return member
}

// SeedOf returns the data directory of a restored cluster with all members that etcd's configuration names.
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
