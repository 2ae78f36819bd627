package member

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// refuseStranger is an error if the data directory is that of another member of this cluster: volumes were mixed up. etcd
// would take that member's identity, which then is there twice. A directory of a member that is not known here is warned
// of only: whoever restores one may have given it any name. What can't be read is left to etcd, which says why.
func refuseStranger(config *embed.Config, log zerolog.Logger) error {
	owner, err := ownerOf(config.Dir)
	if err != nil || owner.Name == "" || owner.Name == config.Name {
		return nil //nolint:nilerr // see above
	}
	here := types.URLs(config.AdvertisePeerUrls).StringSlice()
	if slices.ContainsFunc(owner.PeerURLs, func(url string) bool { return slices.Contains(here, url) }) {
		return nil
	}
	cluster, err := types.NewURLsMap(config.InitialCluster)
	if _, known := cluster[owner.Name]; err == nil && known {
		return fmt.Errorf("the data directory %q is that of member %q at %q, not of member %q at %q",
			config.Dir, owner.Name, owner.PeerURLs, config.Name, here)
	}
	log.Warn().Str("was", owner.Name).Strs("was_at", owner.PeerURLs).Str("is", config.Name).Strs("is_at", here).
		Msg("the data directory was that of a member with another name and other peer URLs; etcd goes on with it")
	return nil
}

// ownerOf is the member that the data directory was written by, as it was last known there.
func ownerOf(dataDir string) (owner membership.Member, err error) {
	segments, err := named(datadir.ToWALDir(dataDir), "*.wal")
	if err != nil || len(segments) == 0 {
		return owner, errors.Join(errors.New("no log"), err)
	}
	identity, err := headOf(filepath.Join(datadir.ToWALDir(dataDir), segments[0]))
	if err != nil {
		return owner, err
	}
	err = readDatabase(datadir.ToBackendFileName(dataDir), func(tx *bolt.Tx) error {
		members := tx.Bucket(schema.Members.Name())
		if members == nil {
			return errors.New("no members")
		}
		return json.Unmarshal(members.Get(fmt.Appendf(nil, "%x", identity.NodeID)), &owner)
	})
	return owner, err
}

// headOf is who writes the log; each of its segments begins with that.
func headOf(segment string) (identity etcdserverpb.Metadata, err error) {
	var unreadable error
	err = eachRecord(segment, func(record *walpb.Record) bool {
		if record.Type == wal.MetadataType {
			unreadable = identity.Unmarshal(record.Data)
		}
		return false
	})
	return identity, errors.Join(err, unreadable)
}
