package member

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// refuseStranger is an error if the data directory is that of a member with another name and other peer URLs: volumes
// were mixed up. etcd would take its identity and serve its data. Whoever means it sets force-new-cluster. What can't be
// read is left to etcd, which says why.
func refuseStranger(config *embed.Config) error {
	owner, err := ownerOf(config.Dir)
	if err != nil || config.ForceNewCluster || owner.Name == "" || owner.Name == config.Name {
		return nil //nolint:nilerr // see above
	}
	here := types.URLs(config.AdvertisePeerUrls).StringSlice()
	if slices.ContainsFunc(owner.PeerURLs, func(url string) bool { return slices.Contains(here, url) }) {
		return nil
	}
	return fmt.Errorf("the data directory %q is that of member %q at %q, not of member %q at %q",
		config.Dir, owner.Name, owner.PeerURLs, config.Name, here)
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

// headOf is what each segment of a log begins with: a checksum, and who writes it.
func headOf(segment string) (identity etcdserverpb.Metadata, err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	file, err := os.Open(segment)
	if err != nil {
		return identity, err
	}
	defer file.Close() // nothing was written
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for record := (walpb.Record{}); err == nil; {
		switch err = decoder.Decode(&record); record.Type {
		case wal.CrcType:
			decoder.UpdateCRC(record.Crc)
		case wal.MetadataType:
			return identity, identity.Unmarshal(record.Data)
		}
	}
	return identity, err
}
