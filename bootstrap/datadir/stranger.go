package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// refuseStranger is an error if the data directory is that of another member of this cluster: volumes were mixed up. etcd
// would take that member's identity, which then is there twice. A directory of a member that is not known here is warned
// of only: whoever restores one may have given it any name. What can't be read is left to etcd, which says why.
func (f *Findings) refuseStranger(configured Identity, log zerolog.Logger) error {
	owner, err := f.owner()
	if err != nil || owner.Name == "" || owner.Name == configured.Name {
		return nil //nolint:nilerr // see above
	}
	here := configured.PeerURLs
	if slices.ContainsFunc(owner.PeerURLs, func(url string) bool { return slices.Contains(here, url) }) {
		return nil
	}
	cluster, err := types.NewURLsMap(configured.InitialCluster)
	if _, known := cluster[owner.Name]; err == nil && known {
		return otherMember.because(f.root.path, owner.Name, owner.PeerURLs, configured.Name, here)
	}
	log.Warn().Str("was", owner.Name).Strs("was_at", owner.PeerURLs).Str("is", configured.Name).Strs("is_at", here).
		Msg("the data directory was that of a member with another name and other peer URLs; etcd goes on with it")
	return nil
}

// owner is the member that the data directory was written by, as it was last known there.
func (f *Findings) owner() (owner membership.Member, err error) {
	segments := f.segments()
	if len(segments) == 0 {
		return owner, errors.Join(errors.New("no log"), f.wal.err)
	}
	identity, err := headOf(f.segment(segments[0]))
	if err != nil {
		return owner, err
	}
	return owner, json.Unmarshal(f.contents.members[fmt.Sprintf("%x", identity.NodeID)], &owner)
}

// headOf is who writes the log; each of its segments begins with that, after a checksum.
func headOf(path string) (identity etcdserverpb.Metadata, err error) {
	err = readSegment(path, func(s *segment) error {
		for record, err := range s.records() {
			if err != nil {
				return orRepaired(err)
			}
			if record.kind == wal.MetadataType {
				return identity.Unmarshal(record.data)
			}
			if record.kind != wal.CrcType {
				break
			}
		}
		return nil
	})
	return identity, err
}
