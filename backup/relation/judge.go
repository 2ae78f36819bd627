package relation

import "slices"

// Case is all that the relation depends on.
type Case struct {
	State   State
	Names   Names
	Place   Place
	Owned   bool // the store's owner is this member's
	Lacks   bool // the store has revisions that the data lack
	Rows    Rows
	Resumes bool // the store's newest generation was created by the cluster of these data, which was killed before it could note that
	Adopts  bool // the user has named the store's cluster
}

// Names classifies the cluster that the data name.
type Names string

// The clusters that data may name.
const (
	Nothing Names = "no cluster"
	This    Names = "the store's cluster"
	Another Names = "another cluster"
)

// Place classifies the contents of the store for the generation that the data names, or all of its contents for data that names none.
type Place string

// The places.
const (
	Void      Place = "nothing"            // no cluster is named, and there is no object
	Objects   Place = "objects"            // no cluster is named, and there are objects
	Manifest  Place = "manifest only"      // a cluster is named, and nothing was ever stored
	Reserved  Place = "reservation only"   // a cluster is named that has stored backups, and they were deleted
	Newest    Place = "newest generation"  // or data that name none
	Ended     Place = "ended generation"   // a later one exists
	NotListed Place = "unknown generation" // nor a later one
)

// Cases lists every value of each part of a Case.
var (
	states = []State{NoData, Damaged, Valid}
	names  = []Names{Nothing, This, Another}
	places = []Place{Void, Objects, Manifest, Reserved, Newest, Ended, NotListed}
	rows   = []Rows{NotCompared, Equal, Different}
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

// rule is a line of the table: a case that has one of each is in the relation. An empty list, and a nil, take any.
type rule struct {
	states   []State
	names    []Names
	places   []Place
	owned    *bool
	lacks    *bool
	rows     []Rows
	resumes  *bool
	adopts   *bool
	relation Relation
}

func (r rule) fits(c Case) bool {
	return oneOf(r.states, c.State) && oneOf(r.names, c.Names) && oneOf(r.places, c.Place) && oneOf(r.rows, c.Rows) &&
		equal(r.owned, c.Owned) && equal(r.lacks, c.Lacks) && equal(r.resumes, c.Resumes) && equal(r.adopts, c.Adopts)
}

func oneOf[T comparable](list []T, value T) bool {
	return len(list) == 0 || slices.Contains(list, value)
}

func equal(wanted *bool, value bool) bool { return wanted == nil || *wanted == value }

func decide(c Case) Relation { return decideBy(Rules, c) }

func decideBy(rules []rule, c Case) Relation {
	for _, r := range rules {
		if r.fits(c) {
			return r.relation
		}
	}
	return Same
}

var (
	yes, no = new(true), new(false)
	valid   = []State{Valid}
	invalid = []State{NoData, Damaged}
	present = []State{Damaged, Valid}
	unnamed = []Names{Nothing}
)

// Rules are the table. The first rule that fits wins; a case that none fits is Same.
var Rules = []rule{
	{nil, nil, []Place{Void}, nil, nil, nil, nil, nil, Empty},
	{valid, nil, []Place{Objects}, nil, nil, nil, nil, nil, Empty}, // the writer founds the store for these data
	{nil, nil, []Place{Objects}, nil, nil, nil, nil, nil, Nameless},
	{valid, nil, nil, nil, nil, nil, nil, yes, Adopted},
	{invalid, nil, []Place{Reserved}, nil, nil, nil, nil, nil, Emptied},
	{nil, nil, nil, nil, nil, nil, nil, yes, Ours},
	{present, []Names{Another}, nil, nil, nil, nil, nil, nil, OtherCluster},
	{invalid, nil, nil, no, nil, nil, nil, nil, OtherOwner},
	{invalid, nil, []Place{Manifest}, nil, nil, nil, nil, nil, Founded},
	{invalid, nil, nil, nil, nil, nil, nil, nil, Ours},

	// Valid data of a store with a cluster.
	{nil, unnamed, nil, nil, nil, nil, no, nil, Unclaimed},
	{nil, nil, []Place{Ended}, nil, nil, nil, no, nil, Succeeded}, // unless their own cluster has created it, by an adoption
	{nil, nil, []Place{NotListed}, nil, nil, nil, nil, nil, Unnumbered},
	{nil, nil, nil, nil, nil, []Rows{Different}, nil, nil, Copied},
	{nil, nil, []Place{Newest}, nil, yes, nil, nil, nil, Behind},
}
