// Package format encodes and decodes backups, as specified in docs/backup-format.md. The package does not depend on
// stores or etcd.
//
// # Overview
//
// A backup consists of full snapshots and segments. A full snapshot is a copy of etcd's database. A delta segment,
// which this package reads and writes, contains what etcd added to the database in a range of revisions: the
// unmodified rows of the key bucket, and the small buckets (leases, users, alarms) that changed. To restore etcd's
// database, a restore appends these rows to the rows of the full snapshot.
//
// Every object starts with a statement: a line of JSON with a kind, a checksum of the line, an ed25519 signature if
// there is a signing key, and the length and SHA-256 of the bytes that follow. The statement describes the object and
// identifies the signing key, and is sufficient to verify the rest of the object without decrypting it. The bytes
// that follow are compressed with zstd, and encrypted if there are age recipients.
//
// # The chain
//
// Segments form a chain. Each segment has a Position (the first revision that earlier segments do not cover) and two
// digests of the rows since the full snapshot: Before excludes the rows of the segment, and After includes them:
//
//	C(r) = SHA-256(C(before r) || r || SHA-256(rows of r))
//
// The digest is updated once per revision. The initial value of the digest ([Seed]) depends on the cluster, the
// generation and the revision of the full snapshot. Because the digest does not depend on segment boundaries, merged
// segments have the same digests as their sources, and so do segments that two members split differently. A segment
// belongs to a chain only if Before equals the chain's digest at the Position. Readers rely on this rule to detect
// missing, foreign and reordered segments, and writers rely on it to detect that another member has different data.
//
// A segment may have no rows, because etcd has revisions without rows (for example, if a transaction only changes a
// lease), and because an idle cluster stores segments to record the time. The next segment then has the same revision
// and the next Part. The last segment of a generation is the end marker ([Ending]). The end marker occupies the
// position of the next segment, so no segment can be appended.
//
// # The records
//
// A segment contains, in this order: rows ordered by key, and [Marker] records with the times of revisions; hashes
// that etcd computed during compactions; the small buckets that changed; and the number of records. [SegmentBuilder]
// and [SegmentReader] use the same code to enforce the order, so a reader accepts every segment that the builder can
// create.
//
// # Invariants
//
//   - Content is valid only after a reader has reached the end. A reader returns io.EOF after checking all lengths,
//     digests, counts and the order. After any other error, callers must discard everything that they have read.
//   - Input is untrusted. Memory usage is bounded for any input: readers do not trust lengths, decoders accept a
//     window of at most 8 MiB, and decompression stops at the size in the manifest.
//   - Errors quote at most a few bytes of the content, and never keys.
//   - Errors from the underlying reader are returned unchanged, so a lost connection never marks a backup as damaged.
//   - With trusted keys, unsigned content is never used, and content that these keys would reject is never written.
//   - The format has a single version. A reader returns ErrNewer for a higher version and ignores unknown fields.
//
// # Example
//
// A full snapshot exists at revision 6. A client writes the key apple twice in revision 7, changes no keys in
// revision 8, and deletes the key pear in revision 9. The writer calls NewSegmentBuilder with the Start of the
// snapshot, adds three rows (7_0, 7_1, 9_0t) and the marker "revision 9 at 12:00:12", and calls Finish. The manifest
// has position 7.000000000, end 9, three rows, Before = Seed(…, 6) and After = C(9). The position is also used as the
// object name. The next segment gets position 10.000000000. If that segment is stored before revision 10 exists, it
// has no rows, and the segment after it gets position 10.000000001. docs/backup-format-example.md shows an example
// segment byte by byte.
//
// A reader calls Next to get the manifest, compares Before with the digest of its chain, and calls Record until
// io.EOF. SegmentReader compares the digest of the rows with After before it returns io.EOF.
//
// # Limits
//
// The archive package determines which objects form a chain, and whether segments may be stored or deleted. The
// restore package interprets the values of rows. Encryption only prevents others from reading backups. To prevent
// others from creating backups, use signatures: anyone can encrypt a backup, because recipients are public.
package format
