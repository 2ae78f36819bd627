package standalone

import (
	"context"
	"fmt"
	"runtime/debug"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
)

// VerifyDataDir validates the data directory of an etcd that does not run. Everything is opened for reading only and
// nothing is changed. A directory that does not exist or holds nothing yet is valid: it belongs to a new member.
//
// Sanity checks structure: the files are there, the WAL's segments are in sequence, the database opens and has its
// buckets. Every other mode also reads everything: snapshots, WAL, every revision and every page of the database, and
// whether the three fit together.
//
// What a crash of etcd leaves behind, and etcd repairs by itself when it starts, is valid: the torn last record of a
// WAL, a snapshot file that was not finished, a database that was created but never used.
//
// The error names the broken file. In full mode bbolt reads pages in a goroutine of its own, where corruption can cause
// a panic that nothing recovers; InChild keeps that out of the calling process.
func VerifyDataDir(ctx context.Context, dataDir string, mode bootstrap.Mode) error {
	found, err := survey(dataDir)
	if err != nil || found == nil {
		return err
	}
	applied, err := verifyDatabase(ctx, found, mode)
	if err != nil || mode == bootstrap.Sanity || found.unborn() {
		return err
	}
	return verifyLog(ctx, found, applied)
}

// verifyLog reads the WAL and the snapshots, and compares them with the last entry that the database has applied.
func verifyLog(ctx context.Context, found *member, applied uint64) error {
	written, err := readWAL(ctx, found)
	if err != nil {
		return err
	}
	newest, err := verifySnapshots(ctx, found, written)
	if err != nil {
		return err
	}
	if err := replayable(found, newest); err != nil {
		return err
	}
	return consistent(found, written, newest, applied)
}

// replayable asks etcd whether it can start from the newest snapshot with what follows in the WAL.
func replayable(found *member, newest walpb.Snapshot) error {
	err := guarded(func() error {
		_, err := wal.Verify(zap.NewNop(), found.walDir, newest)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s cannot be replayed from entry %d: %w", found.walDir, newest.Index, err)
	}
	return nil
}

// consistent checks that WAL, snapshot and database tell one story.
//
// What was applied or committed has to be in the WAL. etcd's own check (etcdutl) compares the applied entry with the
// committed one instead. That is too strict after a crash: etcd does not flush a record that only moves the commit index,
// while the database is flushed every 100 ms. And a snapshot has to be in the database, or lie next to it to be swapped
// in (etcd's RecoverSnapshotBackend).
func consistent(found *member, written history, newest walpb.Snapshot, applied uint64) error {
	switch {
	case written.committed > written.last:
		return fmt.Errorf("%s ends at entry %d, but entry %d was committed", found.walDir, written.last, written.committed)
	case applied > written.last:
		return fmt.Errorf("%s ends at entry %d, but %s has applied entry %d", found.walDir, written.last, found.db, applied)
	case newest.Index > applied && !found.hasReceived(newest.Index):
		return fmt.Errorf("%s has applied entry %d, but there is a snapshot of entry %d in %s",
			found.db, applied, newest.Index, found.snapDir)
	}
	return nil
}

// guarded runs a check and turns a panic into an error. Memory faults are included: the database is mapped, and a bad
// offset in it may point anywhere.
func guarded(check func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("reading it panicked: %v", cause)
		}
	}()
	return check()
}
