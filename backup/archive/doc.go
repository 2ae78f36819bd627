// Package archive defines the layout of backups in a store: the object names, the statements that describe the
// objects, and the functions that find and read a revision. The writer package decides when to write, and the
// retention package decides when to merge and delete. The archive package itself deletes nothing except segments that
// were stored too late.
//
// # Objects
//
// A store belongs to one cluster, which is identified by cluster.json. Generations are stored under gen/NNNNNN/. A
// generation is the history between two restores. Within a generation, revisions only increase. A generation contains
// full snapshots (stock etcd snapshots) and segments (the rows that changed since the previous segment). Small
// objects are merged into larger ones that cover a minute or an hour. A merged object is a concatenation of segments.
// docs/backup-format.md specifies every byte.
//
// All metadata is stored as statements: lines of JSON with a checksum and, if there is a signing key, a signature.
// Names are not trusted, because anyone with write access to the store can create objects. The statement in an object
// must match the object name. An object that cannot be verified is skipped and reported.
//
// # The sequence
//
// The objects of a generation form a single sequence. A segment's position consists of the first revision that
// earlier segments do not cover and the number of earlier segments without rows at that revision. The end of a
// segment determines the position, and therefore the name, of the next segment. A store never creates the same name
// twice, so creating the next name is the only lock that writers need: if two processes continue from the same
// head, one creates the object and the other gets store.ErrExists.
//
// Each segment also records the digest of all earlier rows in Before. A segment from another history is therefore
// never used as the next segment, even if the position matches.
//
// A name becomes available again when its segment has been merged and deleted, so a writer that was suspended may
// store another segment under the name. Late segments are ignored: readers prefer merged objects to segments, and
// Merge rejects a segment if another merged object contains a different segment at the same position. Merged objects
// may overlap if two members merge at the same time, but overlapping objects contain the same segments.
//
// For example, a cluster at revision 10 stores a full snapshot, whose Next is position 11.0. The writer captures
// revisions 11 to 14 and creates segment/11.0, whose manifest ends at revision 14. Then a lease changes without a new
// revision, so segment/15.0 has no rows. The next rows are stored in segment/15.1.
//
// # The head and the end of a generation
//
// A walk follows the sequence from object to object. Head, Advance, History and Find all use walk to find the end of
// a sequence. Objects after the end that cannot be verified are reported as Ignored and have no effect. Head starts
// at the newest object that can be verified. A restore that creates a new cluster first calls Archive.End to end the
// generation. At the next position, Archive.End creates an empty segment that names the successor. No writer can add
// objects to a generation that has ended, so the successor contains all confirmed backups. Only then does the restore
// create the successor's generation.json. Lineage ignores a generation unless the previous generation has ended.
//
// A full snapshot starts a new chain if earlier rows were compacted or are damaged. The new chain does not start at
// the next position of the sequence, so the manifest of the full snapshot records that position in Behind. Until
// Archive.Open has stored an empty segment that names the snapshot at that position, the snapshot is ignored.
//
// # Chains and paths
//
// History lists all restore points. A Chain is a range of revisions without a gap. Find returns the Path to a Target:
// a full snapshot and the objects to read after the snapshot. Read reads these objects and verifies every byte. If an
// object is missing or damaged, the error is a Fault, and Fallback returns another path that avoids the object by
// using an older full snapshot or unmerged objects. If the other path ends at an earlier revision, the revisions in
// between are lost. A path never ends early without an error. If the first segment after a full snapshot does not
// continue from the snapshot, the Fault names the snapshot instead of the segment, because a path from an older full
// snapshot may still succeed.
//
// # Limits
//
// The archive package does not depend on etcd and does not interpret rows. The relation package determines whether a
// data directory belongs to a store.
package archive
