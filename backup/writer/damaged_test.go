package writer

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
)

// damage changes a byte of an object.
func (s *stand) damage(name string) {
	s.Helper()
	content, there := s.store.Content(name)
	require.True(s, there, name)
	content[12] ^= 1
	s.store.SetContent(name, content)
}

// head is where the chain ends.
func (s *stand) head() archive.Head {
	s.Helper()
	head, err := archive.New(s.store, keys).Head(s.Context(), 1)
	require.NoError(s, err)
	return head
}

// contents are those of all objects.
func (s *stand) contents() map[string][]byte {
	s.Helper()
	all := map[string][]byte{}
	for _, name := range s.names() {
		all[name], _ = s.store.Content(name)
	}
	return all
}

// requireThere says that nothing of what was there is another, or gone.
func (s *stand) requireThere(before map[string][]byte) {
	s.Helper()
	for name, content := range before {
		now, there := s.store.Content(name)
		require.True(s, there, name)
		require.True(s, bytes.Equal(content, now), name)
	}
}

// stopped has a chain of a full and some segments, and a member that has stopped.
func stopped(t *testing.T, last func(s *stand)) *stand {
	t.Helper()
	s := begun(t)
	s.awaitStored(s.put("a", "1"))
	last(s)
	require.NoError(t, s.Flush(t.Context()))
	s.end()
	return s
}

func TestADamagedEndOfTheChainIsLeftAloneAndAFullBeginsAnother(t *testing.T) {
	for name, last := range map[string]func(s *stand){
		"with rows": func(s *stand) { s.put("a", "2") },
		"without rows": func(s *stand) {
			require.NoError(s, s.Flush(s.Context()))
			_, err := s.etcd.Client.UserAdd(s.Context(), "someone", "secret")
			require.NoError(s, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := stopped(t, last)
			s.damage(archive.SegmentName(1, s.head().Segment.Position))
			before := s.contents()
			s.run()
			s.eventually(func(f Facts) bool { return f.Fulls == 1 && f.Broken == nil && f.Trouble == nil }, "a full is made")
			assert.Contains(t, s.Facts().LastFull.Reason, "damaged: gen/000001/segment/")
			assert.Contains(t, s.log.String(), "stays as it is; a full begins another chain")
			for i := range 3 {
				s.awaitStored(s.put("b", fmt.Sprint(i)))
			}
			require.NoError(t, s.Flush(t.Context()))
			s.requireThere(before)
			s.requireAllKept()
			assert.EqualValues(t, 1, s.Facts().Fulls)
			s.requireChains(2)
			assert.NoError(t, s.head().Damaged)
		})
	}
}

func TestADamagedEndIsNoticedWhileTheMemberRuns(t *testing.T) {
	s := newStand(t).often().run()
	s.awaitStored(s.put("a", "1"))
	s.awaitStored(s.put("a", "2"))
	require.NoError(t, s.Flush(t.Context()))
	s.damage(archive.SegmentName(1, s.head().Segment.Position))
	s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.Broken == nil }, "a full is made")
	s.awaitStored(s.put("a", "3"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireAllKept()
}

// Somebody who may create objects takes the name that comes next. What is known of the end of the chain would hold for minutes.
func TestWhatCannotBeUsedAtTheNextPositionOfAMemberThatRunsIsAnsweredAtOnce(t *testing.T) {
	made := formattest.NewKeys(t)
	signs := formattest.LoadKeys(t, format.KeyFiles{SigningKey: made.SigningKey, TrustedKeys: made.TrustedKeys})
	for name, made := range map[string]struct {
		by    *format.Keys
		start func(s *stand) format.Start
	}{
		"garbage":             {by: signs},
		"another cluster's":   {signs, func(s *stand) format.Start { start := s.head().Start; start.Cluster = "beef"; return start }},
		"without a signature": {keys, func(s *stand) format.Start { return s.head().Start }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			s.with(signs)
			s.run()
			s.awaitStored(s.put("a", "1"))
			require.NoError(t, s.Flush(t.Context()))
			content := make([]byte, 100)
			if made.start != nil {
				builder, err := format.NewSegmentBuilder(made.by, made.start(s))
				require.NoError(t, err)
				object, err := builder.Finish(format.Source{Member: "1"})
				require.NoError(t, err)
				content, err = io.ReadAll(object.Reader())
				require.NoError(t, err)
			}
			s.store.SetContent(archive.SegmentName(1, s.head().Position), content)
			s.put("a", "2")
			s.eventually(func(f Facts) bool { return f.Fulls == 2 && f.Broken == nil && f.Trouble == nil }, "a full is made")
			s.awaitStored(s.put("a", "3"))
			require.NoError(t, s.Flush(t.Context()))
			s.requireAllKept()
			s.requireChains(2)
		})
	}
}

func TestWhereNoFullCanBeBelievedAnotherBeginsAnew(t *testing.T) {
	s := stopped(t, func(s *stand) { s.put("a", "2") })
	s.damage(archive.ManifestName(1, s.head().Full.Name()))
	before := s.contents()
	s.run()
	s.eventually(func(f Facts) bool { return f.Fulls == 1 && f.Broken == nil && f.Trouble == nil }, "a full is made")
	s.awaitStored(s.put("b", "3"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireThere(before)
	s.requireAllKept()
	s.requireChains(1)
}

func TestADamagedFullIsReplacedWithinTheChain(t *testing.T) {
	s := newStand(t).often().run()
	s.awaitStored(s.put("a", "1"))
	_, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	s.put("a", "2")
	require.NoError(t, s.Flush(t.Context()))
	s.damage(archive.ManifestName(1, s.head().Full.Name()))
	before := s.contents()
	s.eventually(func(f Facts) bool { return f.Fulls == 3 && f.FullRunning == nil }, "a full is made")
	assert.Contains(t, s.Facts().LastFull.Reason, "damaged: gen/000001/full/")
	s.awaitStored(s.put("b", "3"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireThere(before)
	assert.Equal(t, s.Facts().LastFull.Name, s.requireAllKept().Full.Name())
	s.requireChains(1)
	assert.EqualValues(t, 3, s.Facts().Fulls)
}

// The data of a member may be older than what is damaged: then there is nothing to begin with.
func TestAMemberThatIsBehindWhatIsDamagedBeginsNothing(t *testing.T) {
	s := stopped(t, func(s *stand) { s.put("a", "2") })
	s.store.SetContent(archive.SegmentName(1, format.After(s.etcd.Revision()+100)), []byte("damaged"))
	before := s.names()
	s.run()
	s.eventually(func(f Facts) bool { return f.Trouble != nil }, "it is said")
	assert.Contains(t, s.Facts().Trouble.Text, "cannot go on from what the store has")
	assert.Equal(t, before, s.names())
}
