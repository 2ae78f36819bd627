package dataversion

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// embeddedServer calls the server object itself, so that authentication does not apply.
type embeddedServer struct{ *etcdserver.EtcdServer }

func (s embeddedServer) facts() facts {
	f := facts{announced: Parse(version.Version), leader: s.Leader() == s.MemberID()}
	if v := s.ClusterVersion(); v != nil {
		f.cluster = Version{v.Major, v.Minor}
	}
	if v := s.StorageVersion(); v != nil {
		f.storage = Version{v.Major, v.Minor}
	}
	if info := etcdserver.NewServerVersionAdapter(s.EtcdServer).GetDowngradeInfo(); info != nil && info.Enabled {
		f.downgrade = Parse(info.TargetVersion)
	}
	for _, member := range s.Cluster().Members() {
		if !member.IsStarted() || member.IsLearner {
			f.newcomers = append(f.newcomers, describe(member))
		}
	}
	return f
}

func describe(member *membership.Member) string {
	if !member.IsStarted() {
		return fmt.Sprintf("member %s, which was added and has not started yet", member.ID)
	}
	return fmt.Sprintf("learner %s, which has no vote yet", member.Name)
}

func (s embeddedServer) downgrade(ctx context.Context, target Version) error {
	_, err := s.Downgrade(ctx, &etcdserverpb.DowngradeRequest{
		Action: etcdserverpb.DowngradeRequest_ENABLE, Version: target.String(),
	})
	return err
}

// cancelDowngrade bypasses Downgrade, which loses the error.
func (s embeddedServer) cancelDowngrade(ctx context.Context) error {
	return s.Version().DowngradeCancel(ctx)
}
