package relation

// Case contains everything that determines the relation.
type Case struct {
	State   State
	Names   Names
	Place   Place
	Owned   bool // this member's cluster owns the store
	Lacks   bool // the store has revisions that the data does not have
	Rows    Rows
	Resumes bool // this cluster created the newest generation, but was killed before recording it on the volume
	Adopts  bool // --adopt names the store's cluster
}

// Names classifies the cluster ID recorded with the data.
type Names string

// Values of Names.
const (
	Nothing Names = "no cluster"
	This    Names = "the store's cluster"
	Another Names = "another cluster"
)

// Place describes whether the store contains the generation of the data. If the data has no recorded cluster, Place
// describes the store as a whole.
type Place string

// Values of Place.
const (
	Void      Place = "nothing"            // the store has no objects
	Objects   Place = "objects"            // the store has objects but no cluster ID
	Manifest  Place = "manifest only"      // the store has a cluster ID but has never had backups
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

// classify returns the relation for a case, or Same if no rule matches.
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

	// The data is valid and the store belongs to a cluster.
	case c.Names == Nothing && !c.Resumes:
		return Unclaimed
	case c.Place == Ended && !c.Resumes: // otherwise the cluster of the data created the later generation through an adoption
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
