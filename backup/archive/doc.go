// Package archive defines the layout of backups in a store: the names of objects, the statements about them, and how a
// revision is found and read back. It writes what it is given and deletes nothing but a segment that it has stored too
// late. When to write, merge and delete is decided by packages writer and retention.
//
// # Objects
//
// A store belongs to one cluster, which cluster.json names. Below gen/NNNNNN/ lie the generations. A generation is
// the history between two restores, in which revisions only increase. It holds full snapshots, which are stock etcd
// snapshots, and segments, which hold the rows that changed since. Small objects are merged into larger ones, by
// the minute and by the hour; a merged object is its segments one after the other. docs/backup-format.md specifies
// every byte.
//
// All metadata are statements: lines of JSON with a checksum and, if there is a signing key, a signature. Names are
// not trusted, as anyone who may write to the store can create objects. The statement in an object must confirm its
// name. An object that cannot be verified is skipped and reported.
//
// # The sequence
//
// The objects of a generation form one sequence. Each segment has a position, the first revision that is not
// covered yet and a counter of the segments without rows there. The end of a segment gives the position of the next
// one, so the name of the next object can be computed. Stores create each name once, which makes the name of the
// next position the only lock that writers need: of two processes that continue from the same head, one creates the
// object, and the other one learns that from store.ErrExists.
//
// Each segment also has the digest of all rows before it, in Before. A segment of another history is therefore
// never read after this one, even if its position matches.
//
// A name is free again once its segment was merged and deleted. A writer that was suspended may then store another
// segment there. It does not count, as a merged object takes precedence over a segment, and no merged object may
// include it: Merge compares what it has read with every other merged object that covers the same positions. Merged
// objects may overlap, as two members may merge at the same time, but where they do they have the same segments.
//
// As an example, a cluster with revision 10 stores a full snapshot, whose Next is position 11.0. The writer
// captures revisions 11 to 14 and creates segment/11.0, whose manifest has the end 14. Then a lease changes, which
// has no revision: segment/15.0 has no rows. The next rows go to segment/15.1.
//
// # The head, and the end of a generation
//
// A walk goes from object to object to the end of the sequence. It is the only code that decides where a sequence
// ends, and Head, Advance, History and Find use it. Objects beyond that end which cannot be verified are only
// names: they are reported as Ignored and stop nothing. Head starts its walk at the newest object that can be
// verified. A restore that creates a new cluster first ends the generation: it creates an empty segment at the next
// position that names the successor (Archive.End). From then on every writer of the generation fails at that
// position, so the successor has all that was ever confirmed as stored. Only then does it create the
// generation.json of the successor. That is why Lineage counts a generation only if the sequence of the one before
// has ended.
//
// A full snapshot that starts a chain, because rows before it were compacted or are damaged, would bypass that
// position. So it names the position in Behind, and counts once an empty segment there names it (Archive.Open).
//
// # Chains and paths
//
// History lists what can be restored. A Chain is a range of revisions without a hole. Find returns the Path to a
// Target: a full snapshot and the objects to read after it. Read reads them and verifies every byte. If an object
// turns out to be missing or damaged, the error is a Fault, and Fallback returns another path that avoids it, from
// an older full snapshot or by objects that are not merged. The difference of their revisions is lost. A path never
// ends early without an error. If the first segment after a full snapshot does not continue from it, the Fault is
// about the full snapshot: the sequence crosses it, and an older one may lead across.
//
// # What the package does not do
//
// It does not know etcd, or what a row means. Creating a name is its only lock. It does not decide whether data
// belong to a store: see package relation.
package archive
