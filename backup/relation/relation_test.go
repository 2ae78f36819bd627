package relation

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

var update = flag.Bool("update", false, "write testdata/relation.golden")

const golden = "testdata/relation.golden"

var (
	states   = []State{NoData, Damaged, Valid}
	recorded = []Recorded{NoCluster, StoreCluster, ForeignCluster}
	contents = []Contents{NoObjects, UnidentifiedObjects, ClusterOnly, ReservationOnly, NewestGeneration, EndedGeneration, EarlierGenerations}
	rows     = []Rows{NotCompared, Equal, Different}
)

// allCases yields every combination of field values.
func allCases(yield func(Case) bool) {
	for i := range len(states) * len(recorded) * len(contents) * len(rows) * 16 {
		pick := func(n int) int { at := i % n; i /= n; return at }
		c := Case{
			Adopts: pick(2) == 1, Resumes: pick(2) == 1, Lacks: pick(2) == 1, Owned: pick(2) == 0,
			Rows: rows[pick(len(rows))], Contents: contents[pick(len(contents))], Recorded: recorded[pick(len(recorded))], State: states[pick(len(states))],
		}
		if c.possible() && !yield(c) {
			return
		}
	}
}

// possible reports whether caseOf can return c.
func (c Case) possible() bool {
	unnamedStore := c.Contents == NoObjects || c.Contents == UnidentifiedObjects
	switch {
	case unnamedStore && (c.Recorded == StoreCluster || c.Lacks || c.Adopts):
		return false
	case c.Recorded != StoreCluster && (c.Contents == EndedGeneration || c.Contents == EarlierGenerations):
		return false
	case c.Lacks && (c.Contents == ClusterOnly || c.Contents == ReservationOnly), c.Contents == EndedGeneration && !c.Lacks:
		return false
	case c.Resumes && (!c.Owned || c.Lacks && c.Contents != EndedGeneration):
		return false
	case c.Rows != NotCompared && (c.State != Valid || c.Recorded != StoreCluster || c.Contents != NewestGeneration || c.Resumes):
		return false
	}
	return true
}

func (c Case) String() string {
	parts := []string{string(c.State), string(c.Recorded), "store: " + string(c.Contents)}
	for name, holds := range map[string]bool{"another owner": !c.Owned, "lacks revisions": c.Lacks, "resumes": c.Resumes, "adopts": c.Adopts} {
		if holds {
			parts = append(parts, name)
		}
	}
	if c.Rows != NotCompared {
		parts = append(parts, "rows "+string(c.Rows))
	}
	slices.Sort(parts[3:])
	return strings.Join(parts, ", ")
}

func TestRelation_goldenFile(t *testing.T) {
	var got strings.Builder
	for c := range allCases {
		fmt.Fprintf(&got, "%-18s %s\n", classify(c), c)
	}
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), got.String())
}

var (
	clusterA = archive.Cluster{Cluster: "a", Owner: "ns/etcd", Etcd: "1"}
	data     = Data{State: Valid, Identity: archive.Identity{Cluster: "a", Generation: 2}, Etcd: "1", Owner: "ns/etcd", Revision: 20}
)

func history(numbers ...int) archive.Lineage {
	return archive.Lineage{Generations: generations(numbers...)}
}

func generations(numbers ...int) (all []archive.Generation) {
	for _, n := range numbers {
		all = append(all, archive.Generation{Number: n, Cluster: "a", Owner: "ns/etcd", Etcd: "1", Parent: n - 1})
	}
	return all
}

// head returns a head that ends at the given revision.
func head(revision int64) archive.Head {
	return archive.Head{Start: format.Start{Position: format.After(revision)}, Full: &archive.Full{}}
}

func TestCase_fromDataAndStore(t *testing.T) {
	kept := Store{Cluster: clusterA, Lineage: history(1, 2), Head: head(20)}
	for name, c := range map[string]struct {
		change   func(*Data, *Store)
		relation Relation
		identity archive.Identity
	}{
		"same revisions":                          {func(*Data, *Store) {}, Same, data.Identity},
		"fewer revisions":                         {func(d *Data, _ *Store) { d.Revision = 19 }, Behind, data.Identity},
		"other rows":                              {func(d *Data, _ *Store) { d.Rows = Different }, Diverged, data.Identity},
		"later generation in the store":           {func(_ *Data, s *Store) { s.Generations = generations(2, 3) }, Superseded, data.Identity},
		"only an earlier generation in the store": {func(_ *Data, s *Store) { s.Generations = generations(1) }, UnknownGeneration, data.Identity},
		"another cluster's store":                 {func(_ *Data, s *Store) { s.Cluster.Cluster = "b" }, OtherCluster, data.Identity},
		"no recorded cluster":                     {func(d *Data, _ *Store) { d.Identity = archive.Identity{} }, Unidentified, archive.Identity{}},
		"cluster recorded only by the peers":      {func(d *Data, _ *Store) { d.Identity, d.Peers = archive.Identity{}, data.Identity }, Same, data.Identity},
		"unrecorded generation of this cluster": {
			func(d *Data, s *Store) { d.Identity, s.Head = archive.Identity{}, archive.Head{} },
			Same,
			archive.Identity{Cluster: "a", Generation: 2},
		},
		"unrecorded generation that has ended": {func(d *Data, s *Store) {
			d.Identity, s.Head = archive.Identity{}, archive.Head{Segment: &format.Manifest{Ends: &format.Ending{Successor: 3}}}
		}, Unidentified, archive.Identity{}},
		"interrupted adoption": {func(_ *Data, s *Store) {
			s.Generations, s.Head = generations(2, 3), archive.Head{}
			s.Generations[1].Parent = 0
		}, Same, archive.Identity{Cluster: "a", Generation: 3}},
		"empty volume":                  {func(d *Data, _ *Store) { *d = Data{State: NoData, Owner: data.Owner} }, Ours, archive.Identity{}},
		"empty volume of another owner": {func(d *Data, _ *Store) { *d = Data{State: NoData, Owner: "ns/other"} }, OtherOwner, archive.Identity{}},
		"empty volume, no backups yet":  {func(d *Data, s *Store) { *d, s.Generations = Data{State: NoData, Owner: data.Owner}, nil }, Initialized, archive.Identity{}},
		"empty volume, all backups deleted": {func(d *Data, s *Store) {
			*d, s.Generations, s.Reserved.Revision = Data{State: NoData, Owner: data.Owner}, nil, 5
		}, Emptied, archive.Identity{}},
		"empty volume, unidentified objects": {func(d *Data, s *Store) { *d, *s = Data{State: NoData}, Store{Remains: "gen/000001/"} }, Nameless, archive.Identity{}},
		"empty store":                        {func(_ *Data, s *Store) { *s = Store{} }, Empty, data.Identity},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := data, kept
			c.change(&d, &s)
			j := Compare(d, s, false)
			assert.Equal(t, c.relation, j.Relation)
			assert.Equal(t, c.identity, j.Identity)
		})
	}
	assert.Equal(t, Adopted, Compare(data, Store{Cluster: archive.Cluster{Cluster: "b"}}, true).Relation)
}

func TestAnAdoptionIsDoneOnce(t *testing.T) {
	s := Store{Cluster: clusterA, Lineage: history(1, 2)}
	assert.False(t, s.Adopts("", "me"))
	assert.False(t, s.Adopts("b", "me"))
	assert.True(t, s.Adopts("a", "me"))
	assert.True(t, s.Adopts("a/2", "me"))
	assert.False(t, s.Adopts("a/1", "me"), "generation 1 has ended before")
	s.Generations[1].Adopted = []string{"me"}
	assert.False(t, s.Adopts("a", "me"))
	assert.True(t, s.Adopts("a/2", "me"))
}

func TestRefusals_haveAMessageAndAnAction(t *testing.T) {
	s := Store{Cluster: clusterA, Lineage: history(1, 2), Remains: "gen/000001/", Reserved: archive.Reservation{Revision: 7}}
	for _, r := range []Relation{Nameless, Emptied, Superseded, UnknownGeneration, Unidentified, OtherCluster, OtherOwner} {
		assert.NotEmpty(t, Result{Relation: r}.Describe(data, s, "s3://bucket"), r)
		assert.NotEmpty(t, r.WayOut(), r)
	}
}

func TestNewer_missingRevisions(t *testing.T) {
	contents := Store{Cluster: clusterA, Lineage: history(1, 2), Head: head(20)}
	reserved := func(generation int, reached int64) archive.Reservation {
		return archive.Reservation{Generation: generation, Revision: archive.Margin + reached}
	}
	for name, c := range map[string]struct {
		change  func(*Data, *Store)
		lacks   bool
		newer   string
		reached int64
	}{
		"nothing":            {func(*Data, *Store) {}, false, "", 20},
		"revisions":          {func(d *Data, _ *Store) { d.Revision = 19 }, true, "the data ends at revision 19, but the store has revisions up to 20", 20},
		"reserved revisions": {func(_ *Data, s *Store) { s.Reserved = reserved(2, 25) }, false, "the cluster had reached revision 25", 25},
		"reserved revisions, and no other object": {func(_ *Data, s *Store) {
			s.Lineage, s.Head, s.Reserved = archive.Lineage{}, archive.Head{}, reserved(2, 25)
		}, false, "the cluster had reached revision 25", 25},
		"reserved revisions, and an earlier generation": {func(_ *Data, s *Store) {
			s.Lineage, s.Head, s.Reserved = history(1), head(30), reserved(2, 25)
		}, true, "the cluster had reached revision 25", 25},
		"nothing but the cluster":         {func(_ *Data, s *Store) { s.Lineage, s.Head = archive.Lineage{}, archive.Head{} }, false, "", 0},
		"revisions of another generation": {func(_ *Data, s *Store) { s.Reserved = reserved(3, 25) }, false, "", 20},
		"a generation":                    {func(_ *Data, s *Store) { s.Generations = generations(2, 3) }, true, "generation 2", 0},
		"another cluster":                 {func(_ *Data, s *Store) { s.Cluster.Cluster = "b" }, false, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := data, contents
			c.change(&d, &s)
			j := Compare(d, s, false)
			reached, newer := j.Newer(d, s, "s3://bucket")
			assert.Equal(t, c.lacks, j.Lacks)
			assert.Equal(t, c.reached, reached)
			if c.newer == "" {
				assert.NoError(t, newer)
			} else {
				assert.ErrorContains(t, newer, c.newer)
			}
		})
	}
	assert.Equal(t, 2, OfEtcd(archive.Lineage{Generations: []archive.Generation{{Number: 1, Etcd: "1"}, {Number: 2, Etcd: "2"}}}, "2").Number)
	assert.Zero(t, OfEtcd(history(1), "9").Number)
}

// The error must contain the range of compared revisions, because recovery looks for damage only in that range.
func TestRefusalNamesTheRowsThatWereCompared(t *testing.T) {
	s := Store{Cluster: clusterA, Lineage: history(1, 2), Head: head(20)}
	for name, c := range map[string]struct {
		rows        Rows
		segment     *format.Manifest
		first, last int64
	}{
		"the last of a full snapshot": {Different, nil, 20, 20},
		"those of a segment":          {Different, &format.Manifest{Position: format.Position{Revision: 15}, End: 20}, 15, 20},
		"a segment without rows":      {Different, &format.Manifest{Position: format.Position{Revision: 21}, End: 20}, 20, 20},
		"none":                        {NotCompared, nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := data, s
			d.Rows, s.Head.Segment = c.rows, c.segment
			err := Result{Relation: Diverged}.Refusal(d, s, "the store")
			assert.ErrorContains(t, err, "; to keep using this data, start once with --adopt=a/2")
			var rows RowsError
			if found, ok := errors.AsType[*RowsError](err); ok {
				rows = *found
			}
			assert.Equal(t, c.first, rows.First)
			assert.Equal(t, c.last, rows.Last)
		})
	}
}
