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

// Verify validates the data directory of an etcd that is not running. It opens all files read-only and changes
// nothing. A directory that does not exist or is empty is valid: it belongs to a new member.
//
// In mode Sanity it checks the structure: all files exist, the segments of the WAL are in sequence, and the database
// can be opened and has its buckets. In every other mode it also reads everything: snapshots, WAL, and every revision
// and page of the database, and checks that these three are consistent.
//
// Files that a crash of etcd leaves behind and that etcd repairs when it starts are valid: a torn last record of a
// WAL, an unfinished snapshot file, a database that was created but never used. So is an uninitialized member, which
// Inspect handles. Verify warns of damage that etcd tolerates without losing data: a snapshot file if the log reaches
// back to the one before it, and one of the database's two meta pages.
//
// The error names the damaged file and the way out, or is that of ctx. In full mode bbolt reads pages in its own
// goroutine, where corruption can cause a panic that cannot be recovered; ValidateInChild keeps it out of the calling
// process.
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

// verifyDB returns the values that the database records about itself. In every mode but Sanity it reads all of the
// database. A missing or empty database is accepted, because checkStructure has checked that etcd will fill it.
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
		// The scan comes first: unlike the page check it runs in this goroutine, where a panic is recovered.
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

// verifyBuckets checks that the database fits the log, and that it has the two buckets that hold data. etcd's first
// write creates both, so a database without them is intact as long as nothing refers to its content.
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
		return found, errors.New(`it has no bucket "key"`)
	case meta == nil && !unused:
		return found, errors.New(`it has no bucket "meta"`)
	}
	return found, nil
}

// verifyLog reads the WAL and the snapshots, and compares them with the values that the database records about
// itself.
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

// checkIgnoredSegments rejects a log if a file next to it continues where the log ends: a segment was renamed, and
// etcd would serve without its entries. It ignores a file that cannot be read as a segment.
func checkIgnoredSegments(m *member, last uint64) error {
	for _, name := range m.ignoredSegments() {
		if !isRegular(m.segment(name)) {
			continue
		}
		ends := uint64(0)
		_ = firstRecords(m.segment(name), func(r record) (more bool) { // an unreadable file is ignored
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

// verifySnapshots reads every snapshot file and returns the one that etcd would start from: the newest that is
// readable and recorded in the log, or index 0 if there is none. etcd renames a file that it cannot read.
// checkReplayStart and checkConsistency decide whether the log has all entries after the previous snapshot.
func verifySnapshots(ctx context.Context, m *member, written *history) (newest walpb.Snapshot, err error) {
	for _, name := range m.snapshots() {
		if ctx.Err() != nil {
			return newest, fmt.Errorf("reading %s was stopped: %w", m.snap.path, context.Cause(ctx))
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
			m.warn("snapshot %s is corrupt: %v; etcd renames it and starts from an older one, or from the log alone", path, err)
			continue
		}
		if of := content.Metadata; written.isCommitted(of.Index, of.Term) {
			newest = walpb.Snapshot{Index: of.Index, Term: of.Term, ConfState: &of.ConfState}
		}
	}
	return newest, nil
}

// errPipe means that reading a file might block forever.
var errPipe = errors.New("it is a pipe")

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

// checkReplayStart rejects a log that etcd cannot replay from the newest snapshot. It does the rest of wal.Verify
// after every record has been read; wal.Verify would read them all again.
func checkReplayStart(m *member, written *history, newest walpb.Snapshot) error {
	if err := written.checkStart(newest, startSegment(m.segments(), newest.Index)); err != nil {
		return brokenReplay.errorf(m.wal.path, newest.Index, err)
	}
	return nil
}

// errReceived means that a log depends on a snapshot file that is missing or damaged.
var errReceived = errors.New("it lacks entries that a snapshot covers, and that snapshot is missing or damaged")

// checkConsistency checks that WAL, snapshot and database are consistent.
//
// The WAL must have all entries that were applied (checkTail) or committed. etcd's own check (etcdutl) compares the
// applied entry with the committed one instead. That is too strict after a crash: etcd does not flush a record that
// only advances the commit index, while it flushes the database every 100 ms. The database must include the snapshot,
// or the snapshot's database must be next to it, ready to be swapped in (etcd's RecoverSnapshotBackend).
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
