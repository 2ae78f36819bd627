// Package relation answers one question: how does the data of a member relate to the contents of a store?
//
// Recovery asks before etcd opens the data, the writer of the backups asks while etcd runs, and some commands ask
// without either. They observe different things: recovery sees a closed directory, the writer a running etcd and
// its rows. So each of them fills in a Data and a Store, and Compare, which does no I/O, gives the answer for all.
//
// # What identifies data and a store
//
// A store belongs to one cluster for good. Its ID is random, is created with cluster.json, and is in every
// statement of the store. The history of a cluster is a sequence of generations: a restore ends one and creates the
// next, as does an adoption. A file next to etcd's data names the cluster and the generation that the data belong
// to (archive.Identity). Names never do: two clusters may have one name, one owner and even one etcd cluster ID, as
// etcd computes that from the configuration.
//
// Data without such a file are those of a plain etcd, or of etcdutl snapshot restore. They belong to the store only
// if their own cluster has created its newest generation, or its cluster.json, and was killed before it could note
// that: then the generation has etcd's ID of this cluster and its owner, and nothing is in it yet (Case.Resumes).
// Running members name the cluster as well (Data.Peers).
//
// # The relations
//
// Compare reduces the two to a Case, a product of small enumerations, which classify maps to a Relation. Each
// Relation has one sentence and one way out. testdata/relation.golden has the answer to every case, so a change of
// a rule shows what else it changes.
//
// As an example, take a volume that was rolled back to yesterday's copy. Its identity names the store's cluster and
// newest generation, and its highest revision is below the store's end: Behind. A clone of the volume that was
// written to elsewhere names the same generation, and has as many revisions, but other rows: Copied. A volume that
// was replaced by a restore names a generation that has ended: Succeeded, no matter how many revisions it has.
//
// # What the package does not do
//
// It does not decide what happens then. Recovery has a table for that, which also takes into account what the other
// members report, and what the user asks for; the writer has its state machine. It does not verify signatures or
// digests either: what package archive returns is verified, and what it reports as unverifiable is an error that
// the callers handle before they ask.
package relation
