// Package relation determines how a member's data relates to the contents of a store.
//
// Recovery calls Compare before etcd opens the data directory, the backup writer calls it while etcd is running, and some
// commands call it at other times. Recovery reads a closed data directory, and the writer reads the rows of a running
// etcd. All callers therefore describe their inputs with a Data and a Store, and Compare returns the result without
// any I/O.
//
// # What identifies data and a store
//
// A store always belongs to the same cluster. The random ID of the cluster is created together with cluster.json and
// is part of every manifest in the store. The history of a cluster is a sequence of generations. A restore or an
// adoption ends a generation and creates the next one. A file next to etcd's data records the cluster and the
// generation that the data belongs to (archive.Identity). Names do not identify a cluster: two clusters may have the
// same name, the same owner and even the same etcd cluster ID, because etcd derives that ID from its configuration.
//
// Data without an identity file comes from a plain etcd server or from etcdutl snapshot restore. Data without an
// identity file belongs to the store only if its own cluster created the newest generation or cluster.json, but was
// killed before it could write the file. In that case, the generation is still empty and has the etcd cluster ID and
// the owner of this cluster (Case.Resumes). Running members also identify the cluster (Data.Peers).
//
// # The relations
//
// Compare reduces Data and Store to a Case, which is a combination of small enumerations. The function classify maps
// each Case to a Relation. Each Relation has a description for users and a recommended action. The file
// testdata/relation.golden contains the result for every possible Case, so its diff shows all effects of a changed
// rule.
//
// For example, a volume that was rolled back to yesterday's snapshot has the store's cluster and its newest
// generation, but its highest revision is below the end of the store: the Relation is Behind. If a cloned volume was
// written to elsewhere, its data has the same generation and possibly the same number of revisions, but different
// rows: the Relation is Diverged. If a volume was replaced by a restore, the generation of its data has ended: the
// Relation is Superseded, regardless of the revisions.
//
// # What the package does not do
//
// The package does not decide how to react to a Relation: recovery uses a decision table, which also considers the
// other members and the user's request, and the writer uses a state machine. The package does not verify signatures
// or digests either: package archive verifies everything that it returns, and callers must handle its errors first.
package relation
