// Package format defines the bytes of backups, as docs/backup-format.md describes them for other readers. It knows
// neither stores nor etcd. The archive, the writer and restores call it.
//
// # The idea
//
// A backup has two kinds of content. A full snapshot is a copy of etcd's database. A delta segment, which this
// package reads and writes, contains what etcd added to that database in a range of revisions: the rows of its
// bucket named key, byte by byte, and the small buckets (leases, users, alarms) where they changed. A restore
// writes the rows after those of the full snapshot and gets the database that etcd had.
//
// Every object starts with a statement: a line of JSON with a kind, a checksum over the line, an ed25519 signature
// if there is a signing key, and the length and SHA-256 of the bytes that follow. So a reader knows from one line
// what the object contains and who vouches for it, and can verify the rest without decrypting it. The bytes that
// follow are compressed with zstd, and encrypted to age recipients if there are any.
//
// # The chain
//
// Segments form a chain. Each has a Position, the first revision that is not covered before it, and two digests:
// Before, over all rows since the full snapshot up to the segment, and After, which includes its own rows:
//
//	C(r) = SHA-256(C(before r) || r || SHA-256(rows of r))
//
// The digest is computed per revision and starts from the cluster, the generation and the revision of the full
// snapshot ([Seed]). It does not depend on where segments were cut, so merged segments, or segments that two
// members cut differently, have the same digests. A segment belongs to a chain only if its Before is the chain's
// digest at its Position. That is how a reader detects a missing, foreign or reordered segment, and how a writer
// detects that another member holds other data.
//
// Revisions without rows exist in etcd (a transaction that changes nothing but a lease), and idle clusters need
// proof that time passed. So a segment may have no rows: its Position has the same revision and the next Part. The
// last segment of a generation is its end marker ([Ending]). It takes the position of the next segment, so nothing
// can be appended afterwards.
//
// # The records
//
// A segment contains, in this order: rows in the order of their keys, each revision followed at some point by a
// [Marker] that gives its time; hashes that etcd computed while it compacted; at the end the changed buckets; and a
// record with the number of records. [SegmentBuilder] and [SegmentReader] share the code that enforces the order,
// so everything that can be written can be read.
//
// # Invariants
//
//   - Nothing counts before its end. A reader returns io.EOF only after all lengths, digests, counts and the order were checked.
//     Everything that was read before another error must be discarded.
//   - Input is hostile. Memory is bounded for any input: lengths are not trusted, a decoder accepts a window of 8 MiB, and
//     decompression stops at the promised size.
//   - Errors never repeat more than a little of what was read, and keys never.
//   - An error of the underlying reader is not damage. It is returned unchanged, so a lost connection never condemns a backup.
//   - If trusted keys are configured, nothing unsigned is used, and nothing is written that these keys would reject.
//   - The format has one version. A reader returns ErrNewer for a higher one, and ignores unknown fields.
//
// # An example
//
// A full snapshot exists at revision 6. A client writes apple in revision 7 with two changes, nothing happens in 8,
// and 9 deletes pear. The writer calls NewSegmentBuilder with the Start of the snapshot, adds three rows (7_0, 7_1,
// 9_0t), a marker "revision 9 at 12:00:12", and finishes. The manifest has position 7.000000000, end 9, three rows,
// Before = Seed(…, 6) and After = C(9). Its object is named by the position, and the next segment gets position
// 10.000000000. A segment that is stored before revision 10 exists has no rows, and the one after it is
// 10.000000001. docs/backup-format-example.md shows such a segment byte by byte.
//
// A reader calls Next for the manifest, compares Before with the digest of its chain, calls Record until io.EOF,
// and compares the digest of the rows with After, which the SegmentReader does too.
//
// # What it does not do
//
// It does not decide which chain is the right one, whether a segment may be stored or deleted, or which objects
// exist: the archive does. It does not interpret the values of rows: restore does. And encryption only keeps others
// from reading a backup. It does not keep them from making one, since recipients are public; only signatures do.
package format
