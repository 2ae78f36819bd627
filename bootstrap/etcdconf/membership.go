package etcdconf

import (
	"cmp"
	"fmt"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// defaultCluster is what etcd takes for an initial cluster that was not given.
var defaultCluster = embed.NewConfig().InitialCluster

// checkMembership wants this member in the initial cluster, unless a discovery service knows the members, or a log does.
func (s *settings) checkMembership() error {
	if s.Name == "" {
		return problem("name", "must not be empty")
	}
	if s.ClusterState != "" && s.ClusterState != embed.ClusterStateFlagNew && s.ClusterState != embed.ClusterStateFlagExisting {
		return problem("initial-cluster-state", "must be new or existing, not %s", quote(s.ClusterState))
	}
	if s.Durl != "" || s.DNSCluster != "" || len(s.DiscoveryCfg.Endpoints) > 0 {
		return nil
	}
	// This makes name=URL of the advertised peer URLs if there is no initial cluster. No error of it stops etcd.
	_, _ = s.UpdateDefaultClusterFromName(defaultCluster)
	err := s.checkInitialCluster()
	if err != nil && wal.Exist(cmp.Or(s.WalDir, datadir.ToWALDir(s.Dir))) {
		s.warnings = append(s.warnings, fmt.Sprintf("%s; etcd goes by its log and does not look at it", err))
		return nil
	}
	return err
}

func (s *settings) checkInitialCluster() error {
	for pair := range strings.SplitSeq(s.InitialCluster, ",") {
		_, peer, found := strings.Cut(pair, "=")
		if _, err := types.NewURLs([]string{peer}); pair != "" && (!found || err != nil) {
			return problem("initial-cluster", "%s is not of the form name=scheme://host:port", quote(pair))
		}
	}
	members, err := types.NewURLsMap(s.InitialCluster)
	switch {
	case err != nil:
		return problem("initial-cluster", "is not a list of name=URL pairs")
	case members[s.Name] == nil:
		return problem("initial-cluster", "does not name this member, %s", quote(s.Name))
	case config.CheckDuplicateURL(members):
		return problem("initial-cluster", "gives one URL to two members")
	}
	return nil
}
