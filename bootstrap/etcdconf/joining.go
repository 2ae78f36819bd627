package etcdconf

import "go.etcd.io/etcd/server/v3/embed"

// Joining makes of a member's configuration the one with which it joins a cluster that exists and has these members, a list
// as in initial-cluster. The error is a *KeyError.
func Joining(document []byte, initialCluster string) ([]byte, error) {
	mapping, _, err := decode(document)
	if err != nil {
		return nil, err
	}
	mapping["initial-cluster"] = initialCluster
	mapping["initial-cluster-state"] = embed.ClusterStateFlagExisting
	return rewritten(mapping, "for a member that joins a cluster")
}
