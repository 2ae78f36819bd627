package relation

// Case holds the facts that determine the relation.
type Case struct {
	State   State
	Names   Names
	Place   Place
	Owned   bool // this member's cluster owns the store
	Lacks   bool // the store has revisions that are missing from the data
	Rows    Rows
	Resumes bool // this cluster created the newest generation, but was killed before it recorded that on the volume
	Adopts  bool // --adopt names the store's cluster
}

// Names classifies the cluster ID that is recorded with the data.
type Names string

// The possible cluster IDs of data.
const (
	Nothing Names = "no cluster"
	This    Names = "the store's cluster"
	Another Names = "another cluster"
)

// Place describes what the store has of the data's generation or, for data without a recorded cluster, what it has at
// all.
type Place string

// The places.
const (
	Void      Place = "nothing"            // the store has no objects
	Objects   Place = "objects"            // the store has objects, but no cluster ID
	Manifest  Place = "manifest only"      // the store has a cluster ID, but has never had backups
	Reserved  Place = "reservation only"   // the store has a cluster ID, but its backups were deleted
	Newest    Place = "newest generation"  // also used for data without a recorded cluster
	Ended     Place = "ended generation"   // a later generation exists
	NotListed Place = "unknown generation" // the store has neither this generation nor a later one
)

func caseOf(data Data, s Store, adopt bool) Case {
	identity := data.named()
	c := Case{State: data.State, Names: Nothing, Owned: s.Owner() == data.Owner, Rows: NotCompared, Adopts: adopt}
	switch {
	case identity.Known() && identity.Cluster == s.Cluster.Cluster:
		c.Names = This
	case data.Identity.Known():
		c.Names = Another
	}
	if data.Rows != "" {
		c.Rows = data.Rows
	}
	c.Place = placeOf(c.Names, identity.Generation, s)
	c.Lacks = s.Newest().Number != 0 && (data.Etcd == "" || c.Place == Ended || !s.Head.Empty() && s.Head.Revision() > data.Revision)
	c.Resumes = data.Etcd != "" && data.Etcd == s.Etcd() && c.Owned && s.nothingStored() && (c.Place != Ended || s.Newest().Parent == 0)
	return c
}

func placeOf(names Names, generation int, s Store) Place {
	newest := s.Newest().Number
	switch {
	case s.Cluster.Cluster == "" && s.Remains != "":
		return Objects
	case s.Cluster.Cluster == "":
		return Void
	case newest == 0 && s.Reserved.Revision != 0:
		return Reserved
	case newest == 0:
		return Manifest
	case names != This || generation == newest:
		return Newest
	case generation < newest:
		return Ended
	default:
		return NotListed
	}
}

// classify returns the relation of a case. A case that no rule fits is Same.
func classify(c Case) Relation {
	isValid := c.State == Valid
	switch {
	case c.Place == Void, c.Place == Objects && isValid: // the writer initializes the store for this data
		return Empty
	case c.Place == Objects:
		return Nameless
	case c.Adopts && isValid:
		return Adopted
	case c.Place == Reserved && !isValid:
		return Emptied
	case c.Adopts:
		return Ours
	case c.Names == Another && c.State != NoData:
		return OtherCluster
	case !isValid && !c.Owned:
		return OtherOwner
	case !isValid && c.Place == Manifest:
		return Founded
	case !isValid:
		return Ours

	// Valid data of a store with a cluster.
	case c.Names == Nothing && !c.Resumes:
		return Unclaimed
	case c.Place == Ended && !c.Resumes: // otherwise the data's own cluster has created the later generation by an adoption
		return Succeeded
	case c.Place == NotListed:
		return Unnumbered
	case c.Rows == Different:
		return Copied
	case c.Place == Newest && c.Lacks:
		return Behind
	default:
		return Same
	}
}
