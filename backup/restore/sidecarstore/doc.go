// Package sidecarstore reads the backups that the sidecar, etcd-backup-restore, keeps in an object store: full backups, which
// are snapshots of etcd, and deltas, which are the events of a watch. From a full and what follows it comes the database at any
// later revision that is kept: the snapshot, and the rows to be added to its bucket key.
//
// What is read, in the sidecar's words:
//
//	[v1/|v2/][Backup-<seconds>/]Full-<first>-<last>-<seconds>[.gz|.zlib|.Z][.final]   a snapshot of etcd and its SHA-256
//	[v1/|v2/][Backup-<seconds>/]Incr-<first>-<last>-<seconds>[.gz|.zlib|.Z]           a JSON array of events and its SHA-256
//
// The seconds are those of Unix. Numbered objects below such a name are the chunks of an upload; they count only where the
// object itself is empty, as OpenStack's Swift leaves it. Anything else is left alone, and so is what lies deeper, since it may
// belong to another cluster. Objects that were tagged x-etcd-snapshot-exclude are read like the others: a tag can't be seen here.
//
// # What the names say, and what counts
//
// A name is where to look; the content counts. A full's name has the revision of a request before the snapshot, which may be
// newer: [Base] says what the database really holds. Rows up to there are not repeated. Deltas of two sidecars that wrote at the
// same time overlap: what both have must be the same. A revision that is in no object is a [GapError]; such gaps are usual before
// each full, as the sidecar forgets what it has collected when it takes one.
//
// The time of an event is when the sidecar received it, by its own clock: after a full that took a minute to upload, up to a
// minute later than it happened.
//
// # Why the rows are etcd's own
//
// etcd numbers the rows of a transaction as it makes them, and hands them to a watch in the same order, one event a row, whether
// a put, one of many keys of a range that is deleted, or one of an expired lease. The sidecar watches every key and writes down
// all of an event but the previous value, which it does not ask for. So revision and position make the row's key, and the event's
// key, value, revisions, version and lease its value, byte by byte.
//
// One thing cannot be known: an etcd from before 2024 (its issue 18089) that was compacted at the very revision at which the
// sidecar began to watch had dropped that revision's deletions before the watch saw them. The rows behind a dropped one then have
// a position too low, and the key is still there.
//
// # What no delta holds
//
// Leases themselves, users, roles, whether authentication is on, alarms, members and the revision of the last compaction: those
// stay as they were in the full. A key whose lease was granted after the full names a lease that the restored etcd doesn't know,
// and so lives until it is deleted or overwritten. A lease that was revoked after the full is there until it expires, without
// keys. A password that was changed after the full is the old one again.
package sidecarstore
