// Package recovery decides what happens to etcd's data directory before etcd opens it, and carries that out. Data that
// are damaged, lost or older than the cluster come from the other members or from the backups where that is safe.
// Where it is not, etcd is not started, and one sentence gives the reason and the way out.
//
// # The decision
//
// A decision depends on four values: the state of the volume, what the other members answer, what the store answers,
// and what the user requests. Facts collects them while a run proceeds, Facts.caseOf reduces them to a Case, and rules
// maps every Case to a Decision: the first rule that fits wins, and the last one fits all. No other code decides. Some
// results ask the peers or the store, as not enough is known yet. docs/recovery.md is generated from the
// rules, and testdata/decisions.golden lists the result of every case.
//
// A state machine carries the results out (Table). Its actions do the I/O and return an event with new facts. Tests
// walk the machine through every reachable state, cut it off anywhere, and check the promises (promises_test.go) there.
//
// # What must hold
//
//   - Nothing is deleted. Data that are replaced are moved to DATADIR.aside-TIME. These copies are deleted only when
//     the volume has no room for something else, oldest first, and the newest only after a later backup was verified.
//   - No acknowledged write is lost without a word. What would be lost is logged in numbers before anything happens.
//   - etcd opens only data that were validated, and no new cluster replaces data that are known to exist.
//   - No two clusters continue from the same data. A restore creates a cluster with a new ID, in a new generation of
//     the store. Before that, it ends the old generation, so that no process can add to it.
//   - No client sees a revision twice. A restored cluster continues above every revision that was ever reserved.
//   - A member that lost its log never votes under its old identity again. It is removed from the cluster and added as
//     a learner.
//   - After a crash at any instant, the next run comes to the same end.
//
// # A restore, step by step
//
// A member that is alone in its cluster finds its database damaged. The rules ask the store, which has a later revision
// of the same generation. Then the run
//
//  1. logs what is lost, and makes sure that the volume has room for both copies;
//  2. builds a data directory next to the old one, under the name DATADIR.restored, and validates it;
//  3. stores in recovery.json which generation it is about to create, and where the old data go;
//  4. ends the old generation, reserves revisions and creates the new generation: this is the claim, and only one
//     process can succeed;
//  5. renames the old data directory, then the new one;
//  6. stores in recovery.json that this was done.
//
// A crash before step 4 is harmless: the next run builds again. After step 4 the store refers to a cluster that exists
// only on this volume, so the next run completes it. recovery.json and the generation in the store, which name the same
// session, distinguish the two.
//
// # Several members
//
// A member of several never restores alone, since the others would keep newer data. If a quorum runs, it rejoins:
// every step of that can be seen in the cluster's list of members, so none is recorded. If no member has usable data,
// or all request the same restore, each uploads what only its volume has, and one of them restores, as the only member
// of a new cluster. The others see its generation in the store, or its etcd, and rejoin. The claim decides which one
// it is.
//
// Without a quorum, a valid volume is opened, as etcd would do: after a power failure all members are silent at first.
// The exception is a volume that is older than the store, as after a rollback. Everything in the store was acknowledged
// by a quorum, so a quorum without it must not form. Such a member waits for one that runs and has it.
//
// # The values
//
// A run consists of values that own their fields and use only those before them:
//
//   - session has the parts that all of them share: the member, the facts, and the last survey of the peers;
//   - localVolume is the data directory in use, and what is built or preserved next to it;
//   - remoteStore is the store: it observes, asks package relation how the volume relates to what it has seen, and founds,
//     adopts and ends generations;
//   - peerGroup is the other members: it asks them through package peers, and compares the volume with their answers;
//   - job replaces the volume's data: it builds, claims and installs, and computes what is lost;
//   - runner drives the machine and binds its actions.
//
// Recovery starts runs one at a time, and answers the lifecycle in the sidecar's terms.
//
// # What the package does not do
//
// It does not decide whether data are valid (package datadir), how they relate to a store (package relation), or how
// the peers list this member (package peers). Package seed makes data directories. It does not watch a running etcd:
// the writer of the backups ends an etcd whose generation has ended, and calls RecordMismatch, so that the data are
// compared again before they are served.
package recovery
