// Package relation determines how a member's data relates to the contents of a store.
//
// Recovery calls Compare before etcd opens the data, the writer of the backups calls it while etcd is running, and
// some commands call it at other times. Recovery reads a closed data directory, and the writer reads the rows of a
// running etcd. All callers therefore describe their inputs with a Data and a Store, and Compare returns the result
// without any I/O.
//
// # What identifies data and a store
//
// A store belongs to one cluster forever. The random ID of the cluster is created together with cluster.json and is
// part of every manifest in the store. The history of a cluster is a sequence of generations. A restore or an
// adoption ends a generation and creates the next one. A file next to etcd's data records the cluster and the
// generation that the data belongs to (archive.Identity). Names do not identify a cluster: two clusters may have the
// same name, the same owner and even the same etcd cluster ID, because etcd derives that ID from its configuration.
//
// Data without an identity file comes from a plain etcd server or from etcdutl snapshot restore. Data without an
// identity file belongs to the store only if its own cluster created the newest generation or cluster.json, but was
// killed before it could write the file. The generation is then still empty and has the etcd cluster ID and the owner
// of this cluster (Case.Resumes). Running members also identify the cluster (Data.Peers).
//
// # The relations
//
// Compare reduces Data and Store to a Case, which is a combination of small enumerations. The function classify maps
// each Case to a Relation. Each Relation has one description and one way out. The file testdata/relation.golden
// contains the result for every possible Case, so its diff shows all effects of a changed rule.
//
// For example, a volume that was rolled back to yesterday's snapshot has the store's cluster and its newest
// generation, but its highest revision is below the end of the store: the Relation is Behind. A cloned volume that
// was written to elsewhere has the same generation and possibly as many revisions, but different rows: Copied. A
// volume that was replaced by a restore has a generation that has ended: Succeeded, regardless of its revisions.
//
// # What the package does not do
//
// The package does not decide how to react to a Relation. Recovery has a decision table, which also depends on the
// other members and on the user's request. The writer has a state machine. The package does not verify signatures or
// digests either: package archive verifies everything that it returns, and callers must handle its errors first.
package relation
