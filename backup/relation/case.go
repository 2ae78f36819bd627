package relation

// Case contains everything that determines the relation.
type Case struct {
	State    State
	Recorded Recorded
	Contents Contents
	Owned    bool // this member's cluster owns the store
	Lacks    bool // the store has revisions that the data does not have
	Rows     Rows
	Resumes  bool // this cluster created the newest generation, but was killed before recording it on the volume
	Adopts   bool // --adopt names the store's cluster
}

// Recorded classifies the cluster ID recorded with the data.
type Recorded string

// Values of Recorded.
const (
	NoCluster      Recorded = "no recorded cluster"
	StoreCluster   Recorded = "store's cluster"
	ForeignCluster Recorded = "another cluster"
)

// Contents describes whether the store contains the generation of the data. If the data has no recorded cluster,
// Contents describes the store as a whole.
type Contents string

// Values of Contents.
const (
	NoObjects           Contents = "no objects"
	UnidentifiedObjects Contents = "unidentified objects"     // the store has objects but no cluster ID
	ClusterOnly         Contents = "cluster ID only"          // the store has a cluster ID but has never had backups
	ReservationOnly     Contents = "reservation only"         // the store has a cluster ID, but its backups were deleted
	NewestGeneration    Contents = "newest generation"        // also used for data without a recorded cluster
	EndedGeneration     Contents = "ended generation"         // a later generation exists
	EarlierGenerations  Contents = "only earlier generations" // the store has neither this generation nor a later one
)

func caseOf(data Data, s Store, adopt bool) Case {
	identity := data.named()
	c := Case{State: data.State, Recorded: NoCluster, Owned: s.Owner() == data.Owner, Rows: NotCompared, Adopts: adopt}
	switch {
	case identity.Known() && identity.Cluster == s.Cluster.Cluster:
		c.Recorded = StoreCluster
	case data.Identity.Known():
		c.Recorded = ForeignCluster
	}
	if data.Rows != "" {
		c.Rows = data.Rows
	}
	c.Contents = contentsOf(c.Recorded, identity.Generation, s)
	c.Lacks = s.Newest().Number != 0 && (data.Etcd == "" || c.Contents == EndedGeneration || !s.Head.Empty() && s.Head.Revision() > data.Revision)
	c.Resumes = data.Etcd != "" && data.Etcd == s.Etcd() && c.Owned && s.nothingStored() && (c.Contents != EndedGeneration || s.Newest().Parent == 0)
	return c
}

func contentsOf(recorded Recorded, generation int, s Store) Contents {
	newest := s.Newest().Number
	switch {
	case s.Cluster.Cluster == "" && s.Remains != "":
		return UnidentifiedObjects
	case s.Cluster.Cluster == "":
		return NoObjects
	case newest == 0 && s.Reserved.Revision != 0:
		return ReservationOnly
	case newest == 0:
		return ClusterOnly
	case recorded != StoreCluster || generation == newest:
		return NewestGeneration
	case generation < newest:
		return EndedGeneration
	default:
		return EarlierGenerations
	}
}

// classify returns the relation for a case, or Same if no rule matches.
func classify(c Case) Relation {
	isValid := c.State == Valid
	switch {
	case c.Contents == NoObjects, c.Contents == UnidentifiedObjects && isValid: // the writer initializes the store for this data
		return Empty
	case c.Contents == UnidentifiedObjects:
		return Nameless
	case c.Adopts && isValid:
		return Adopted
	case c.Contents == ReservationOnly && !isValid:
		return Emptied
	case c.Adopts:
		return Ours
	case c.Recorded == ForeignCluster && c.State != NoData:
		return OtherCluster
	case !isValid && !c.Owned:
		return OtherOwner
	case !isValid && c.Contents == ClusterOnly:
		return Initialized
	case !isValid:
		return Ours

	// The data is valid and the store belongs to a cluster.
	case c.Recorded == NoCluster && !c.Resumes:
		return Unidentified
	case c.Contents == EndedGeneration && !c.Resumes: // if c.Resumes is set, the data's own cluster created the later generation
		return Superseded
	case c.Contents == EarlierGenerations:
		return UnknownGeneration
	case c.Rows == Different:
		return Diverged
	case c.Contents == NewestGeneration && c.Lacks:
		return Behind
	default:
		return Same
	}
}
