package recovery

import (
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/bootstrap/etcdconf"
)

// MemberOf finds in etcd's configuration who the member is. The error says that it cannot be used, or that certificates that
// it names can't be read now.
func MemberOf(yaml []byte, dataDir string) (Member, error) {
	checked, err := etcdconf.Parse(yaml)
	if err != nil {
		return Member{}, err
	}
	etcd := checked.Etcd
	member := Member{DataDir: dataDir, Name: etcd.Name, Token: etcd.InitialClusterToken}
	for _, url := range etcd.AdvertisePeerUrls {
		member.PeerURLs = append(member.PeerURLs, url.String())
	}
	cluster, err := types.NewURLsMap(etcd.InitialCluster)
	if err == nil && len(cluster) == 1 && cluster[etcd.Name] != nil {
		// That is what ids are made of; what is advertised may differ from it.
		member.PeerURLs = cluster[etcd.Name].StringSlice()
		member.Alone = etcd.ClusterState == "new"
	}
	return member, nil
}
