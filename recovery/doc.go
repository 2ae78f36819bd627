// Package recovery decides what happens to etcd's data directory before etcd opens it, and carries out the decision.
// If the data is damaged, lost or older than the cluster, recovery replaces it with the data of the other members or
// of a backup, provided that this is safe. Otherwise, etcd is not started, and a message explains why and what to do.
//
// # The decision
//
// A decision depends on four values: the state of the volume, the responses from the other members, the response
// from the store, and the user's request. Facts collects these values during a run, Facts.caseOf reduces them to a
// Case, and rules maps every Case to a Decision. The first matching rule applies, and the last rule matches every
// case. No other code makes decisions. If too little is known, the decision is to query the peers or the store.
// docs/recovery.md is generated from the rules, and testdata/decisions.golden lists the result of every case.
//
// A state machine carries out the decisions (Table). Its actions do the I/O and return an event with new facts. Tests
// drive the machine through every reachable state, interrupt it at every point, and check the invariants below
// (claim_test.go).
//
// # Invariants
//
//   - Data that is replaced is not deleted but moved to DATADIR.aside-TIME. Preserved copies are deleted only if the
//     volume has no room for something else, oldest first, and the newest only after a later backup was verified.
//   - No acknowledged write is lost silently. The log reports the number of lost revisions before anything happens.
//   - etcd opens only validated data, and no new cluster replaces data that is known to exist.
//   - Two clusters never continue from the same data. A restore creates a cluster with a new ID, in a new generation
//     of the store. The old generation ends first, so that no process can add to it.
//   - No client sees a revision twice. A restored cluster continues above every revision that was ever reserved.
//   - A member that lost its log never votes under its old identity again. The member is removed from the cluster and
//     added as a learner.
//   - After a crash at any point, the next run has the same outcome.
//
// # A restore, step by step
//
// Suppose that the only member of a cluster has a damaged database. The rules query the store, which has a later
// revision of the same generation. Then the run
//
//  1. logs what is lost, and makes sure that the volume has room for both copies;
//  2. builds a data directory next to the old one, under the name DATADIR.restored, and validates it;
//  3. records in recovery.json which generation it is about to create, and the new path of the old data;
//  4. claims the new generation: it ends the old generation, reserves revisions and creates the new generation, which
//     only one process can do;
//  5. renames the old data directory, then the new one;
//  6. records in recovery.json that the restore is done.
//
// A crash before step 4 is harmless: the next run builds again. After step 4, the store refers to a cluster that
// exists only on this volume, so the next run completes the restore. To find out whether step 4 was completed, the
// next run compares the session in recovery.json with the session of the generation in the store.
//
// # Multi-member clusters
//
// A member of a multi-member cluster is never restored alone, because the others would keep newer data. If a quorum
// is running, the member rejoins. The progress of a rejoin is not recorded on the volume, because the cluster's
// member list shows it. If no member has usable data, or if all members request the same restore, each member uploads
// what only its volume has, and one of them restores the data as the only member of a new cluster. The other members
// find its generation in the store, or its etcd, and rejoin. The claim determines which member restores.
//
// Without a quorum, etcd opens a valid volume as usual, because no member responds at first after a power failure.
// However, if the volume is older than the store, for example after a rollback, the member waits for a running member
// that has the data. A quorum has acknowledged everything in the store, so a quorum must not form without that data.
//
// # Types
//
// A run consists of values that own their fields and use only the values listed before them:
//
//   - session holds what all parts share: the member, the facts, and the last survey of the peers;
//   - localVolume is the data directory in use, and everything built or preserved next to it;
//   - remoteStore reads the store, determines how the volume relates to the store, and creates, adopts and ends
//     generations;
//   - peerGroup queries the other members with package peers and compares the volume with their answers;
//   - job replaces the data on the volume: it builds, claims and installs data, and computes what is lost;
//   - runner drives the state machine and maps its actions to functions.
//
// Recovery starts one run at a time and reports to the lifecycle with the statuses of the sidecar.
//
// # Related packages
//
// Package datadir decides whether data is valid, package relation determines how the data relates to a store, and
// package peers determines how the other members list this member. Package seed builds data directories. Recovery
// does not watch a running etcd. If the generation of a running etcd has ended, the backup writer stops etcd and
// calls RecordMismatch, so that the data is compared again before it is served.
package recovery
