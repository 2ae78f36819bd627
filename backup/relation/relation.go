package relation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"etcd-wrapper/backup/archive"
)

// A Relation describes how a member's data relates to the contents of a store.
type Relation string

// Relations between data and a store.
const (
	Empty             Relation = "empty"              // the store has no objects
	Nameless          Relation = "no cluster ID"      // the store has objects but no cluster ID
	Initialized       Relation = "initialized"        // the store belongs to this owner and has never had backups
	Emptied           Relation = "emptied"            // the store has a cluster ID, but its backups were deleted
	Ours              Relation = "ours"               // there is no data, and the store belongs to this owner
	Same              Relation = "same"               // the data belongs to the newest generation and has all of its revisions
	Behind            Relation = "behind"             // the data belongs to the newest generation, but the store has later revisions
	Superseded        Relation = "superseded"         // the data belongs to a generation that was superseded by a later one
	Diverged          Relation = "diverged"           // the data and the store have the same generation but different rows
	UnknownGeneration Relation = "unknown generation" // the store has neither the generation of the data nor a later one
	Unidentified      Relation = "unidentified data"  // the data has no recorded cluster, but the store does
	OtherCluster      Relation = "other cluster"      // the data and the store belong to different clusters
	OtherOwner        Relation = "other owner"        // the store belongs to another owner, and this volume has no data or lacks revisions
	Adopted           Relation = "adopted"            // --adopt names the store's cluster, so the data continues that cluster
)

// State describes the data on a member's volume.
type State string

// States of a member's data.
const (
	NoData  State = "no data"
	Damaged State = "damaged data" // etcd cannot open the data directory
	Valid   State = "valid data"
)

// Rows is the result of comparing the newest rows in the store with the data.
type Rows string

// Rows can only be compared while etcd is running.
const (
	NotCompared Rows = "not compared"
	Equal       Rows = "equal"
	Different   Rows = "different"
)

// Data describes a member's data.
type Data struct {
	State    State
	Identity archive.Identity // zero if no identity is recorded
	Peers    archive.Identity // identity reported by other members with the same etcd cluster ID; zero if there are none
	Etcd     string           // etcd cluster ID in hexadecimal; empty if etcd has stored nothing
	Owner    string           // owner of this member's cluster (NAMESPACE/NAME)
	Revision int64            // upper bound for the last revision of the data, including etcd's log
	Rows     Rows             // empty means NotCompared
}

// Store describes the verified contents of a store.
type Store struct {
	archive.Lineage

	Cluster  archive.Cluster     // zero if the store has no cluster ID
	Head     archive.Head        // end of the newest generation, if there is one
	Reserved archive.Reservation // zero if there is no reservation
	Remains  string              // common prefix of the objects in a store without a cluster ID; empty if there are none
}

// Owner returns the owner of the store (NAMESPACE/NAME).
func (s Store) Owner() string { return cmp.Or(s.Newest().Owner, s.Cluster.Owner) }

// Etcd returns the etcd cluster ID of the store's cluster in hexadecimal, or an empty string if it is unknown.
func (s Store) Etcd() string { return cmp.Or(s.Newest().Etcd, s.Cluster.Etcd) }

// Identity returns the identity of data that continues the newest generation in the store.
func (s Store) Identity() archive.Identity {
	return archive.Identity{Cluster: s.Cluster.Cluster, Generation: max(1, s.Newest().Number)}
}

// nothingStored reports whether there is no generation or the newest one is empty and has not ended.
func (s Store) nothingStored() bool {
	return s.Newest().Number == 0 || s.Head.Empty() && s.Head.PastEnd.IsZero() && s.Head.Ending() == nil
}

// Adopts reports whether --adopt names the store's cluster and the adoption has not been carried out yet. A plain
// cluster ID adopts the cluster once per owner, and ID/N does so only while generation N is the newest. The flag can
// therefore be left in place after the adoption.
func (s Store) Adopts(flag, owner string) bool {
	id, number, named := strings.Cut(flag, "/")
	switch {
	case id == "" || id != s.Cluster.Cluster:
		return false
	case named:
		return s.Newest().Number > 0 && number == strconv.Itoa(s.Newest().Number)
	default:
		return !slices.Contains(archive.Adoptions(s.Generations), owner)
	}
}

// Result describes how data relates to a store.
type Result struct {
	Relation
	Identity archive.Identity // recorded identity of the data, or the identity to record for it
	Lacks    bool             // the store has a later generation, or revisions that the data does not have
}

// Compare returns how data relates to a store. adopt is the result of Store.Adopts.
func Compare(data Data, store Store, adopt bool) Result {
	c := caseOf(data, store, adopt)
	j := Result{Relation: classify(c), Identity: data.Identity}
	j.Lacks = c.Lacks && j.Relation != Same // no revisions are lost if the data continues the backups, even if the store has more revisions
	switch {
	case c.Recorded == StoreCluster && !data.Identity.Known():
		j.Identity = data.Peers
	case j.Relation == Same && c.Resumes:
		j.Identity = store.Identity()
	}
	return j
}

// Newer returns the highest revision that the data's cluster is known to have reached, or 0 if unknown. The error
// describes what the data is missing; it is nil if nothing is missing. Members keep the reservation ahead of the
// revisions that they acknowledge, so the reservation counts even if nothing else is left of the generation. store is
// the URL of the store.
func (j Result) Newer(data Data, s Store, store string) (reached int64, newer error) {
	switch j.Relation { //nolint:exhaustive // the other relations do not show what the data is missing
	case Superseded:
		return 0, errors.New(j.Describe(data, s, store))
	case Behind:
		reached, newer = s.Head.Revision(), errors.New(j.Describe(data, s, store))
	case Same:
		reached = max(0, s.Head.Revision())
	case UnknownGeneration: // the head does not count, because it belongs to an earlier generation
	default:
		return 0, nil
	}
	if own := []int{j.Identity.Generation, data.named().Generation}; slices.Contains(own, s.Reserved.Generation) {
		reached = max(reached, s.Reserved.Revision-archive.Margin)
	}
	if newer == nil && reached > data.Revision {
		newer = fmt.Errorf("the data ends at revision %d, but the store shows that the cluster had reached revision %d", data.Revision, reached)
	}
	return reached, newer
}

// OfEtcd returns the generation with the given etcd cluster ID, or the zero value if there is none.
func OfEtcd(l archive.Lineage, id string) (found archive.Generation) {
	if at := slices.IndexFunc(l.Generations, func(g archive.Generation) bool { return g.Etcd == id }); at >= 0 {
		found = l.Generations[at]
	}
	return found
}

// named returns the recorded identity of the data, or else the identity reported by other members.
func (d Data) named() archive.Identity {
	if d.Identity.Known() {
		return d.Identity
	}
	return d.Peers
}

// Describe describes the relation to users. store is the URL of the store.
func (j Result) Describe(data Data, s Store, store string) string {
	cluster := s.Cluster.Cluster
	switch j.Relation { //nolint:exhaustive // the other relations are described where they are handled
	case Nameless:
		return fmt.Sprintf("%s contains objects under %s, but no cluster.json or generation.json to identify their cluster", store, s.Remains)
	case Emptied:
		return fmt.Sprintf("%s belongs to cluster %s, which has reserved revisions up to %d, but does not contain any backups", store, cluster, s.Reserved.Revision)
	case Behind:
		return fmt.Sprintf("the data ends at revision %d, but the store has revisions up to %d", data.Revision, s.Head.Revision())
	case Superseded:
		return fmt.Sprintf("another cluster was restored from this cluster's backups: the data belongs to generation %d of cluster %s, which was superseded by generation %d in %s",
			data.Identity.Generation, cluster, s.Newest().Number, store)
	case Diverged:
		difference := fmt.Sprintf("the data ends at revision %d", data.Revision)
		if data.Rows == Different {
			difference = fmt.Sprintf("revision %d differs from the data on this volume (the next start checks the data for disk corruption)", s.Head.Revision())
		}
		return fmt.Sprintf("another copy of this data is writing to the same backups: %s has generation %d of cluster %s up to revision %d, but %s; only the copy that wrote first may continue",
			store, data.Identity.Generation, cluster, s.Head.Revision(), difference)
	case UnknownGeneration:
		return fmt.Sprintf("%s does not contain generation %d of cluster %s, which the data belongs to", store, data.Identity.Generation, cluster)
	case Unidentified:
		return fmt.Sprintf("%s belongs to cluster %s, but the data directory does not identify its cluster", store, cluster)
	case OtherCluster:
		return fmt.Sprintf("%s belongs to cluster %s, but the data belongs to cluster %s", store, cluster, data.Identity.Cluster)
	case OtherOwner:
		return fmt.Sprintf("%s belongs to cluster %s (%s), but this member belongs to %s", store, cluster, s.Owner(), data.Owner)
	}
	return ""
}

// RowsError is returned for data whose rows differ from the newest rows in the store.
type RowsError struct {
	Err         error
	First, Last int64 // range of compared revisions
}

// Error implements error.
func (e *RowsError) Error() string { return e.Err.Error() }

// Unwrap returns the underlying error.
func (e *RowsError) Unwrap() error { return e.Err }

// Refusal returns an error that describes the relation and what the user can do about it. If rows differ, the error
// is a RowsError.
func (j Result) Refusal(data Data, s Store, store string) error {
	generation := fmt.Sprintf("--adopt=%s/%d", s.Cluster.Cluster, s.Newest().Number)
	err := fmt.Errorf("%s; %s", j.Describe(data, s, store), strings.ReplaceAll(j.WayOut(), "--adopt=CLUSTER/GENERATION", generation))
	if j.Relation != Diverged || data.Rows != Different {
		return err
	}
	rows := &RowsError{Err: err, First: s.Head.Revision(), Last: s.Head.Revision()}
	if s.Head.Segment != nil {
		rows.First = min(rows.Last, s.Head.Segment.Position.Revision) // a segment without rows starts after its last revision
	}
	return rows
}

// WayOut returns what the user can do about the relation, or an empty string if no action is needed.
func (r Relation) WayOut() string { return wayOut[r] }

var wayOut = map[Relation]string{
	Nameless:          "restore cluster.json or generation.json from an earlier version of the bucket, or point --backup-store at another location",
	Emptied:           "restore the backups from an earlier version of the bucket, or delete cluster.json and everything under reservation/ to start a new cluster there",
	Superseded:        "export the data directory to keep revisions that exist only on this volume; to keep using this data, point --backup-store at another location",
	Diverged:          "to keep using this data, start once with --adopt=CLUSTER/GENERATION or point --backup-store at another location; to restore from the backups, move the data directory aside",
	UnknownGeneration: "restore the missing generation.json from an earlier version of the bucket",
	Unidentified:      "to use the data with that store, start once with --adopt and the store's cluster ID; to keep the two separate, point --backup-store at another location; to restore from the store, move the data directory aside",
	OtherCluster:      "point --backup-store at this cluster's store or at an empty location, mount the volume that belongs to that store, or start once with --adopt and the store's cluster ID to use the data with it",
	OtherOwner:        "point --backup-store at this cluster's own location, set --cluster-name if the cluster was renamed, or start once with --adopt and the store's cluster ID to restore from it",
}
