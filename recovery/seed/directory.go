package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/internal/disk"
)

// unfinished is the suffix of a directory that is being built.
const unfinished = ".restoring"

// A Seed describes the data directory to build.
type Seed struct {
	DataDir string        // must be absent or empty
	Name    string        // of the member that uses the directory
	Members types.URLsMap // of the cluster, including that member, by name
	Token   string        // see NewToken; members that each restore the same revision share it
	// Generation is the new generation; 0 if none is created. The database may be older than the cluster that it
	// replaces, so only this number shows how often logs were restarted.
	Generation int
}

// A Result describes what was built.
type Result struct {
	restore.Result
	ClusterID, MemberID uint64
	Voters              int      // of the cluster that was backed up, at that revision
	Alarms              []string // that were raised in it; the restored cluster has none
}

// Build makes the data directory from the source's data. It is made under another name, DATADIR.restoring, and renamed
// when all of it is on the disk; the remains of an interrupted build are removed first. etcd, or etcd-wrapper, then starts
// on it as on any other; it no longer needs initial-cluster and the like.
//
// A database whose pages contradict each other can make bbolt panic in a goroutine of its own: a caller that must survive
// that runs Build in a process of its own (package child). A data directory that is not empty is refused. Errors are those
// of restore.Database, or name what is wrong with the members.
func (s Seed) Build(ctx context.Context, source restore.Source, options restore.Options) (Result, error) {
	s.DataDir = ResolvePath(s.DataDir)
	var lock *os.File
	c, err := s.newCluster()
	if err == nil {
		lock, err = s.prepare()
	}
	if err != nil {
		return Result{}, fmt.Errorf("cannot restore into %s: %w", s.DataDir, err)
	}
	defer lock.Close() // it was not written to
	restored, err := s.build(ctx, c, source, options)
	if err != nil {
		return Result{}, errors.Join(err, os.RemoveAll(s.DataDir+unfinished))
	}
	return Result{Result: restored, ClusterID: uint64(c.ID()), MemberID: uint64(c.self.ID), Voters: c.votersBefore, Alarms: c.alarms}, nil
}

// logSize returns the bytes of a new log: one segment, and the next one that etcd allocates in advance.
func logSize() int64 { return 2 * wal.SegmentSizeBytes }

// CheckSpace returns a restore.ErrNoRoom with both numbers if the volume has no room for what Build would make.
func (s Seed) CheckSpace(source restore.Source) error {
	return restore.CheckSpace(filepath.Dir(ResolvePath(s.DataDir)), source, restore.Options{ReservedBytes: logSize()})
}

// ClusterID returns the ID of the cluster with these members and token.
func (s Seed) ClusterID() (uint64, error) {
	c, err := s.newCluster()
	if err != nil {
		return 0, err
	}
	return uint64(c.ID()), nil
}

// prepare checks that the place is free, and creates an empty directory with the suffix, which is locked until the
// file is closed.
func (s Seed) prepare() (*os.File, error) {
	if err := CheckPath(s.DataDir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.DataDir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(entries) > 0:
		return nil, fmt.Errorf("it is not empty, it holds %s", entries[0].Name())
	}
	dir := s.DataDir + unfinished
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	remains, err := os.ReadDir(dir)
	for _, entry := range remains { // of an interrupted build
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func (s Seed) build(ctx context.Context, c *cluster, source restore.Source, options restore.Options) (restore.Result, error) {
	member := filepath.Join(s.DataDir+unfinished, "member")
	options.ReservedBytes, options.Finish = logSize(), c.rewriteMembers
	restored, err := restore.Database(ctx, source, filepath.Join(member, "snap", "db"), options)
	if err != nil {
		return restore.Result{}, err
	}
	if err := c.writeLog(member); err != nil {
		return restore.Result{}, fmt.Errorf("cannot create the log in %s: %w", member, err)
	}
	if err := s.publish(member); err != nil {
		return restore.Result{}, fmt.Errorf("cannot rename the finished directory to %s: %w", s.DataDir, err)
	}
	return restored, nil
}

// publish makes the directory durable and gives it its name.
func (s Seed) publish(member string) error {
	for _, dir := range []string{filepath.Join(member, "wal"), filepath.Join(member, "snap"), member, filepath.Dir(member)} {
		if err := disk.SyncDirectory(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(s.DataDir); err != nil && !errors.Is(err, fs.ErrNotExist) { // fails if it is not empty any more
		return err
	}
	return disk.Rename(s.DataDir+unfinished, s.DataDir)
}
