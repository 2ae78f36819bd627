package writer

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// damage changes a byte of an object.
func (s *stand) damage(name string) {
	s.Helper()
	content, exists := s.store.Content(name)
	require.True(s, exists, name)
	content[12] ^= 1
	s.store.SetContent(name, content)
}

// head returns the end of the chain.
func (s *stand) head() archive.Head {
	s.Helper()
	_, head := s.newest()
	return head
}

// contents returns the contents of all objects.
func (s *stand) contents() map[string][]byte {
	s.Helper()
	all := map[string][]byte{}
	for _, name := range s.names() {
		all[name], _ = s.store.Content(name)
	}
	return all
}

// requireUnchanged checks that no object was changed or deleted.
func (s *stand) requireUnchanged(before map[string][]byte) {
	s.Helper()
	for name, content := range before {
		now, exists := s.store.Content(name)
		require.True(s, exists, name)
		require.True(s, bytes.Equal(content, now), name)
	}
}

// next puts a segment without rows at the next position, which continues the chain.
func next(by *format.Keys, of func(*format.Start)) func(s *stand) {
	return func(s *stand) {
		start := s.head().Start
		of(&start)
		s.lay(segment(s.T, by, start, format.Source{Member: "1"}))
	}
}

// lay puts a segment into the store as it is.
func (s *stand) lay(object format.Object) {
	s.Helper()
	content, err := io.ReadAll(object.Reader())
	require.NoError(s, err)
	s.store.SetContent(archive.SegmentName(1, object.Position), content)
}

// The known end of the chain stays valid for minutes: anyone with write access can create the object at the next position.
func TestInspection_unusableObjectCausesAFullSnapshot(t *testing.T) {
	made := formattest.NewKeys(t)
	signs := formattest.LoadKeys(t, format.KeyFiles{SigningKey: made.SigningKey, TrustedKeys: made.TrustedKeys})
	end := func(s *stand) { s.damage(archive.SegmentName(1, s.head().Segment.Position)) }
	full := func(s *stand) { s.damage(archive.ManifestName(1, s.head().Full.Name())) }
	for name, test := range map[string]struct {
		stops, often bool           // whether the member stops before, and whether it looks all the time
		last         func(s *stand) // that it stores
		harm         func(s *stand)
		reason       string
		fulls        int64
		chains       int
	}{
		"the end":                                  {stops: true, harm: end, reason: "segment", fulls: 1, chains: 2},
		"the end, without rows":                    {stops: true, last: func(s *stand) { s.addUser("someone") }, harm: end, reason: "segment", fulls: 1, chains: 2},
		"the end, while it runs":                   {often: true, harm: end, reason: "segment", fulls: 2, chains: 2},
		"garbage at the next position":             {harm: func(s *stand) { s.store.SetContent(archive.SegmentName(1, s.head().Position), make([]byte, 100)) }, reason: "segment", fulls: 2, chains: 2},
		"another cluster's at the next position":   {harm: next(signs, func(start *format.Start) { start.Cluster = "beef" }), reason: "segment", fulls: 2, chains: 2},
		"without a signature at the next position": {harm: next(keys, func(*format.Start) {}), reason: "segment", fulls: 2, chains: 2},
		"the only full":                            {stops: true, harm: full, reason: "full", fulls: 1, chains: 1},
		"the newest full, while it runs":           {often: true, last: func(s *stand) { s.full(); s.put("a", "behind it") }, harm: full, reason: "full", fulls: 3, chains: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.with(signs)
			if test.often {
				s.often()
			}
			s.run()
			s.awaitStored(s.put("a", "1"))
			s.putAndFlush("a", "2")
			if test.last != nil {
				test.last(s)
				require.NoError(t, s.Flush(t.Context()))
			}
			if test.stops {
				s.end()
			}
			test.harm(s)
			before := s.contents()
			if test.stops {
				s.run()
			}
			if !test.often { // its segment could follow the damaged one before the next look
				s.put("a", "3")
			}
			s.eventually(func(f Facts) bool {
				return f.Fulls == test.fulls && f.BrokenSince.IsZero() && f.Problem == nil && f.RunningFullSnapshot == nil
			}, "a full is made")
			assert.Contains(t, s.Facts().LastFull.Reason, "damaged: gen/000001/"+test.reason+"/")
			assert.Contains(t, s.log.String(), "left as it is")
			for i := range 3 {
				s.awaitStored(s.put("b", fmt.Sprint(i)))
			}
			require.NoError(t, s.Flush(t.Context()))
			s.requireUnchanged(before)
			assert.Equal(t, s.Facts().LastFull.Name(), s.requireAllKept().Full.Name())
			assert.Equal(t, test.fulls, s.Facts().Fulls)
			s.requireChains(test.chains)
			assert.NoError(t, s.head().Damaged)
		})
	}
}

// A user with write access can create an object of any name. None of these belongs to this history.
func TestInspection_foreignObjectNames(t *testing.T) {
	forged := map[string]string{
		"gen/000001/segment/0000009000000000000.000000000":                              "x",
		"gen/000001/minute/0000000000000000002.000000000_0000009000000000000.000000000": "x",
		"gen/000002/generation.json":                                                    "x",
		"gen/000777/generation.json":                                                    "x",
		"gen/000777/full/0000000000000000009-20301122T120010Z/manifest.json":            "x",
	}
	s := startedStand(t)
	for i := range int64(300) {
		forged[archive.SegmentName(1, format.After(s.etcd.Revision()+10+i))] = "x"
	}
	for name, content := range forged {
		s.store.SetContent(name, []byte(content))
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			s.end()
			s.run(func(w *Writer) { w.pace.successor = 10 * time.Millisecond })
		}
		for i := range 3 {
			s.putAndFlush("a", fmt.Sprint(i))
		}
		assert.Nil(t, s.Facts().Problem)
		assert.Zero(t, s.Facts().BrokenSince)
	}
	s.requireUnchanged(s.contents())
}

// A restore creates the next generation only after it has ended the one before.
func TestInspection_prematureGeneration(t *testing.T) {
	s := startedStand(t)
	s.end()
	s.run(func(w *Writer) { w.pace.successor, w.pace.verifyOwner = 10*time.Millisecond, 10*time.Millisecond })
	require.NoError(t, s.backups().BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 2, Created: time.Now()}))
	for i := range 5 {
		s.putAndFlush("a", fmt.Sprint(i))
	}
	assert.Equal(t, facts.Writer, s.Facts().Role)
	s.requireNotSuperseded()
	s.end()
	s.run(func(w *Writer) { w.pace.heartbeat = 100 * time.Millisecond })
	s.putAndFlush("a", "after a restart")
	s.requireNotSuperseded()
	s.succeed()
	s.awaitSuperseded("another cluster was restored", "generation 2")
}

// empty deletes all objects of the store.
func (s *stand) empty() {
	s.Helper()
	for object, err := range s.store.List(s.Context(), "", "") {
		require.NoError(s, err)
		require.NoError(s, s.store.Delete(s.Context(), object.Name))
	}
}

// The store is checked every few seconds only: what is stored until then goes to the empty store.
func TestEmptiedStore_duringUploads(t *testing.T) {
	s := newStand(t).run()
	s.awaitStored(s.put("a", "1"))
	s.empty()
	s.awaitStored(s.put("a", "2"))
	s.addUser("someone")
	require.NoError(t, s.Flush(t.Context()))
	require.NotEmpty(t, s.names(), "it has not noticed")
	s.check()
	s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.BrokenSince.IsZero() }, "another full begins another chain")
	s.addUser("someone else")
	s.awaitStored(s.put("a", "3"))
	s.requireWhole()
	s.requireUsers(2)
	_, err := s.backups().Cluster(t.Context())
	require.NoError(t, err, "the cluster manifest is there again")
	assert.Equal(t, 1, s.history().Number)
	assert.Contains(t, s.log.String(), "the store was emptied")
}

func TestEmptiedStore_duringTheInspection(t *testing.T) {
	s := newStand(t)
	s.founded(s.store, "c1")
	const name = "gen/000001/generation.json"
	s.store.Inject(memory.Fault{Op: memory.Get, Prefix: name, Then: func() { assert.NoError(t, s.store.Delete(t.Context(), name)) }})
	for _, begins := range []bool{false, true} {
		options := Options{Archive: s.backups(), Etcd: s.options.Etcd, Now: time.Now}
		_, err := inspection{Options: options, storeView: storeView{identity: archive.Identity{Cluster: "c1", Generation: 1}}, canCreate: begins}.run(t.Context())
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

// often makes the writer inspect the store continuously.
func (s *stand) often() *stand {
	s.tune = append(s.tune, func(s *Writer) { s.pace.headValid, s.pace.verifyOwner = 50*time.Millisecond, 50*time.Millisecond })
	return s
}

// foundedBy replaces the contents of the store by those of a store that another cluster has just initialized.
func (s *stand) foundedBy(cluster string) {
	s.Helper()
	theirs := memory.New()
	s.founded(theirs, cluster)
	kept := map[string]bool{}
	for object, err := range theirs.List(s.Context(), "", "") {
		require.NoError(s, err)
		content, _ := theirs.Content(object.Name)
		s.store.SetContent(object.Name, content)
		kept[object.Name] = true
	}
	for _, name := range s.names() {
		if !kept[name] {
			require.NoError(s, s.store.Delete(s.Context(), name))
		}
	}
}

func TestEmptiedStore_takenByAnotherCluster(t *testing.T) {
	s := newStand(t).often().run()
	s.putAndFlush("a", "1")
	s.foundedBy("beef")
	s.requireUntouched("beef", clusterID)
}

func TestEmptiedStore_noticedByFollowers(t *testing.T) {
	c := newCluster(t, 2)
	watching := c.members[1]
	watching.end()
	watching.often().run()
	watching.eventually(func(f Facts) bool { return f.Role == facts.Standby && f.Revision > 0 }, "it watches")
	c.members[0].end()
	c.foundedBy("beef")
	watching.eventually(func(f Facts) bool { return f.Problem != nil && f.Role == facts.Waiting }, "it is said")
	assert.Contains(t, watching.Facts().Problem.Message, "beef")
}

func TestLostIdentity_isWrittenAgain(t *testing.T) {
	for name, stores := range map[string]bool{"by an idle member": false, "by one that stores all the time": true} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			if stores { // and looks for nothing else
				s.options.Interval = 10 * time.Millisecond
				s.run(func(s *Writer) { s.pace.verifyOwner = time.Second })
			} else {
				s.often().run()
			}
			s.awaitStored(s.put("a", "1"))
			for _, name := range []string{"cluster.json", "gen/000001/generation.json"} {
				require.NoError(t, s.store.Delete(t.Context(), name))
				require.Eventually(t, func() bool {
					if stores {
						s.put("a", "2")
					}
					_, exists := s.store.Content(name)
					return exists
				}, patience, poll, name)
			}
			s.awaitStored(s.put("a", "3"))
			s.requireWhole()
		})
	}
}
