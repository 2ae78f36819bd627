package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
)

// Verify validates the data directory of a stopped etcd member. All files are opened read-only. A missing or empty
// directory is valid because it belongs to a new member.
//
// In Sanity mode, Verify checks the structure: all files exist, the WAL segments are consecutive, and the database
// opens and has its buckets. In every other mode, Verify also reads all snapshots, the whole WAL, and all pages and
// revisions of the database, and checks that they are consistent.
//
// Damage from a crash is valid if etcd repairs it at startup: a torn last record in the WAL, an unfinished snapshot
// file, or a database that was created but never used. An uninitialized member is also valid: Inspect handles it.
// Verify warns about damage that etcd tolerates without losing data: damage to an unneeded snapshot file or to one
// of the two meta pages of the database.
//
// Errors name the damaged file and the way to recover, unless ctx is done. In full mode, bbolt reads pages in its
// own goroutine, where corrupt data can cause a panic that cannot be recovered. Use ValidateInChild to protect the
// calling process from such a panic.
func Verify(ctx context.Context, dataDir string, mode bootstrap.Mode) (warnings []string, err error) {
	m := survey(dataDir, "")
	err = withWayOut(ctx, verify(ctx, m, mode))
	return m.warnings, err
}

func verify(ctx context.Context, m *member, mode bootstrap.Mode) error {
	if initialized, err := checkStructure(m); err != nil || !initialized {
		return err
	}
	found, err := verifyDB(ctx, m, mode)
	if err != nil {
		return err
	}
	if err := checkCluster(m, found); err != nil {
		return err
	}
	if err := checkRestore(m, found); err != nil || mode == bootstrap.Sanity || m.namesNoVoter() && found.empty() {
		return err
	}
	return verifyLog(ctx, m, found)
}

// verifyDB returns the metadata of the database and, in every mode except Sanity, reads the whole database. A missing
// or empty database is accepted because checkStructure has verified that etcd will fill it.
func verifyDB(ctx context.Context, m *member, mode bootstrap.Mode) (found contents, err error) {
	if none, err := isDBEmpty(m.database); err != nil || none {
		return contents{keyless: true}, err
	}
	if mode != bootstrap.Sanity {
		defer preload(m.database)()
	}
	err = readDB(m.database, func(tx *bolt.Tx) error {
		if found, err = verifyBuckets(tx, m); err != nil || mode == bootstrap.Sanity {
			return err
		}
		// The scan comes first because, unlike the page check, it runs in this goroutine, where a panic can be
		// recovered.
		if err := scanRevisions(ctx, tx); err != nil {
			return err
		}
		return verifyPages(ctx, tx, m)
	})
	switch {
	case errors.Is(err, errLocked):
		err = lockedDatabase.errorf(m.database, err)
	case ctx.Err() == nil && err != nil && !hasWayOut(err):
		err = corruptDatabase.errorf(m.database, err)
	case err != nil:
		err = fmt.Errorf("database %s: %w", m.database, err)
	}
	return found, err
}

// verifyBuckets returns an error if the database has data but there is no log, or if one of the two required buckets
// is missing. etcd creates both buckets in its first write, so a database without them is accepted if it has no
// applied index and there is no snapshot.
func verifyBuckets(tx *bolt.Tx, m *member) (contents, error) {
	found, err := readContents(tx)
	if err != nil {
		return found, err
	}
	keys, meta := tx.Bucket(schema.Key.Name()), tx.Bucket(schema.Meta.Name())
	unused := keys == nil && found.applied == 0 && len(m.snapshots()) == 0
	switch {
	case len(m.segments()) == 0 && found.applied > 0:
		return found, outrunLog.errorf(fmt.Sprintf("applied entry %d", found.applied), m.wal.path)
	case len(m.segments()) == 0 && !found.keyless:
		return found, outrunLog.errorf("keys", m.wal.path)
	case keys == nil && !unused:
		return found, errors.New(`bucket "key" is missing`)
	case meta == nil && !unused:
		return found, errors.New(`bucket "meta" is missing`)
	}
	return found, nil
}

// verifyLog reads the WAL and the snapshots and compares them with the metadata of the database.
func verifyLog(ctx context.Context, m *member, found contents) error {
	written, err := readLog(ctx, m, nil)
	if err != nil && !written.cut.isLoss(found.single36()) {
		if ctx.Err() == nil {
			err = damagedLog.errorf(err)
		}
		return err
	}
	if err := checkIgnoredSegments(m, written.last); err != nil {
		return err
	}
	if err := found.checkTail(m, written); err != nil {
		return err
	}
	newest, err := verifySnapshots(ctx, m, written)
	if err != nil {
		return err
	}
	if err := checkReplayStart(m, written, newest); err != nil {
		return err
	}
	return checkConsistency(m, written, newest, found.applied)
}

// checkIgnoredSegments returns an error if an ignored file continues where the log ends: it is a renamed segment,
// and etcd would serve without its entries. Files that are not readable segments are ignored.
func checkIgnoredSegments(m *member, last uint64) error {
	for _, name := range m.ignoredSegments() {
		if !isRegular(m.segment(name)) {
			continue
		}
		ends := uint64(0)
		_ = firstRecords(m.segment(name), func(r record) (more bool) { // unreadable files are ignored
			if r.kind == wal.EntryType {
				ends = max(ends, entryIndex(r.data))
			}
			return true
		})
		if ends > last {
			return misnamedSegment.errorf(m.segment(name), ends, last)
		}
	}
	return nil
}

// verifySnapshots reads all snapshot files and returns the snapshot from which etcd would start: the newest readable
// one in the log, or index 0 if there is none. etcd renames snapshot files that it cannot read. checkReplayStart and
// checkConsistency check that the log has all entries after the returned snapshot.
func verifySnapshots(ctx context.Context, m *member, written *history) (newest walpb.Snapshot, err error) {
	for _, name := range m.snapshots() {
		if ctx.Err() != nil {
			return newest, fmt.Errorf("reading %s was interrupted: %w", m.snap.path, context.Cause(ctx))
		}
		path := m.snapshot(name)
		content, err := readSnapshot(path)
		if errors.Is(err, errPipe) {
			return newest, blockedSnapshot.errorf(path)
		}
		if err != nil && written.unfinished(name) {
			continue
		}
		if err != nil {
			m.warn("snapshot %s is corrupt: %v; etcd renames the file and starts from an older snapshot or from the log alone", path, err)
			continue
		}
		if of := content.Metadata; written.isCommitted(of.Index, of.Term) {
			newest = walpb.Snapshot{Index: of.Index, Term: of.Term, ConfState: &of.ConfState}
		}
	}
	return newest, nil
}

// errPipe means that reading the file could block forever.
var errPipe = errors.New("the file is a named pipe")

func readSnapshot(path string) (content *raftpb.Snapshot, err error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, errPipe
	}
	err = recoverPanic(func() error {
		content, err = snap.Read(zap.NewNop(), path)
		return err
	})
	return content, err
}

// checkReplayStart returns an error if etcd cannot replay the log from the newest snapshot. checkReplayStart
// performs the remaining wal.Verify checks without rereading every record.
func checkReplayStart(m *member, written *history, newest walpb.Snapshot) error {
	if err := written.checkStart(newest, startSegment(m.segments(), newest.Index)); err != nil {
		return brokenReplay.errorf(m.wal.path, newest.Index, err)
	}
	return nil
}

// errReceived means that a snapshot file is missing or damaged, although the log does not have the entries that the
// snapshot covers.
var errReceived = errors.New("the log depends on a snapshot that is missing or damaged")

// checkConsistency checks that the WAL, the snapshots and the database are consistent.
//
// The WAL must contain all entries that were committed or applied (see checkTail). etcdutl compares the applied
// index with the commit index instead, which is too strict after a crash: etcd syncs the database every 100 ms, but
// does not sync a record that only advances the commit index. The database must include the snapshot, or the
// database received with the snapshot must be in the same directory for etcd to swap in (RecoverSnapshotBackend).
func checkConsistency(m *member, written *history, newest walpb.Snapshot, applied uint64) error {
	switch {
	case written.committed > written.last:
		return lostEntries.errorf(m.wal.path, written.last, fmt.Sprintf("entry %d was committed", written.committed))
	case newest.Index < written.received && written.received <= written.committed:
		return brokenReplay.errorf(m.wal.path, newest.Index, errReceived)
	case newest.Index > applied && !m.hasReceived(newest.Index):
		return oldDatabase.errorf(m.database, applied, newest.Index, m.snap.path)
	}
	return nil
}
