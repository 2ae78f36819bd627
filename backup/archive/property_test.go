package archive_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// TestRead_randomHistories lets two concurrent writers extend one history while segments are merged and full
// snapshots are created. Reading must still return the correct rows for every revision.
func TestRead_randomHistories(t *testing.T) {
	t.Parallel()
	sealed := NewKeys(t).Load(t)
	rapid.Check(t, func(rt *rapid.T) {
		keys := &format.Keys{}
		if rapid.Bool().Draw(rt, "sealed") {
			keys = sealed
		}
		first := newTestWriter(rt, keys)
		writers := []*testWriter{first, first.clone()}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "writer")
			w, other := writers[i], writers[1-i]
			switch rapid.IntRange(0, 6).Draw(rt, "action") {
			case 0:
				mergeSome(rt, w, other, archive.Minute, archive.Segment)
			case 1:
				mergeSome(rt, w, other, archive.Hour, archive.Minute)
			case 2:
				w.next = w.head().Start
				w.full()
			case 3: // full snapshot taken by a member that splits rows at different revisions
				if last := w.head().Revision(); last > 10 {
					other := w.clone()
					other.next = singleSegment(rt, keys, rapid.Int64Range(11, last).Draw(rt, "full")).Start()
					other.full()
				}
			default:
				write(rt, w)
			}
		}
		head := first.head()
		require.Equal(rt, singleSegment(rt, keys, head.Revision()).After, head.Before, "the digest ignores segment boundaries")
		target := archive.Target{Revision: rapid.Int64Range(10, head.Revision()).Draw(rt, "target")}
		result, _, err := first.restoreAny(target)
		require.NoError(rt, err)
		require.Equal(rt, revisions(result.full+1, target.Revision), result.revisions)
		result, _, err = first.restoreAny(archive.Target{})
		require.NoError(rt, err)
		require.Equal(rt, head.Before, result.Chain)
	})
}

// singleSegment returns one segment with all rows after the first full snapshot.
func singleSegment(t T, keys *format.Keys, last int64) format.Object {
	start := format.Start{Cluster: cluster, Generation: 1, Position: format.After(10), Before: format.Seed(cluster, 1, 10)}
	return Build(t, keys, start, Rows(11, last))
}

// write stores the next segment. If the other writer has already stored that segment, write advances past it.
func write(rt *rapid.T, w *testWriter) {
	var buckets []*format.Bucket
	if rapid.Bool().Draw(rt, "bucket") {
		buckets = append(buckets, Bucket("lease", "of", fmt.Sprint(w.next.Position)))
	}
	last := w.next.Position.Revision - 1 + rapid.Int64Range(0, 3).Draw(rt, "revisions")
	object := w.build(last, buckets...)
	err := archivetest.PutSegment(w.ctx, w.Archive, object)
	if err != nil {
		require.ErrorIs(w.t, err, store.ErrExists)
	}
	if w.next = object.Start(); err != nil || w.stale { // another writer stored or merged rows from here on
		w.next, w.stale = w.head().Start, false
	}
}

// mergeSome merges neighboring objects of a level and deletes sources that have been merged.
func mergeSome(rt *rapid.T, w, other *testWriter, into, from archive.Level) {
	objects := w.objects(from)
	if len(objects) == 0 {
		return
	}
	begin := rapid.IntRange(0, len(objects)-1).Draw(rt, "first")
	end := rapid.IntRange(begin+1, len(objects)).Draw(rt, "last")
	if !contiguous(w, objects[begin:end]) {
		return
	}
	merged, err := w.Merge(w.ctx, into, objects[begin:end])
	if errors.Is(err, archive.ErrHole) { // the other writer has split the same rows into segments at different revisions
		require.True(w.t, into == archive.Minute && overlapped(w, objects[begin:end]), "%s: %s", merged.Name(), err)
	} else if err != nil {
		require.ErrorIs(w.t, err, store.ErrExists)
	}
	w.deleteMerged()
	w.next, other.stale = w.head().Start, true
}

// deleteMerged deletes the sources of merged objects except the newest segment, even while the sources are being
// read.
func (w *testWriter) deleteMerged() {
	segments, minutes, hours := w.objects(archive.Segment), w.objects(archive.Minute), w.objects(archive.Hour)
	w.deleteCovered(segments[:max(0, len(segments)-1)], slices.Concat(minutes, hours))
	w.deleteCovered(minutes, hours)
}

func (w *testWriter) deleteCovered(objects, merged []archive.Object) {
	for _, one := range merged {
		for _, object := range retention.Covered(objects, one) {
			require.NoError(w.t, w.store.Delete(w.ctx, object.Name()))
		}
	}
}

// overlapped reports whether another segment or merged object overlaps the range of the given segments.
func overlapped(w *testWriter, sources []archive.Object) bool {
	from := sources[0].Start
	last, err := w.Manifest(w.ctx, 1, sources[len(sources)-1].Start)
	require.NoError(w.t, err)
	all := slices.Concat(w.objects(archive.Segment), w.objects(archive.Minute), w.objects(archive.Hour))
	return slices.ContainsFunc(all, func(other archive.Object) bool {
		within := other.Start.Compare(from) > 0 || other.Next.Compare(from) > 0
		return within && other.Start.Compare(last.Next()) < 0 && !slices.Contains(sources, other)
	})
}

// contiguous reports whether each object starts where the previous one ends.
func contiguous(w *testWriter, objects []archive.Object) bool {
	for i, object := range objects[1:] {
		next := objects[i].Next
		if next.IsZero() {
			manifest, err := w.Manifest(w.ctx, 1, objects[i].Start)
			require.NoError(w.t, err)
			next = manifest.Next()
		}
		if next != object.Start {
			return false
		}
	}
	return true
}

func TestRead_flippedBits(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed": NewKeys(t).Load(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestWriter(t, keys)
			w.segment(14, Bucket("lease", "a", "1"))
			w.full()
			w.segments(18, 20)
			w.merge(archive.Minute, w.objects(archive.Segment)[:2]...)
			right := w.restore(archive.Target{})
			detected := 0
			for _, object := range w.names("") {
				content, _ := w.store.Content(object)
				for bit := range 8 * len(content) {
					// Check only every 53rd bit: other tests flip every bit of a segment, a full snapshot and a
					// statement.
					if bit%53 != 0 {
						continue
					}
					repair := w.damage(object, bit)
					path, err := w.Find(w.ctx, archive.Target{})
					var result restored
					if err == nil {
						result, err = w.restorePath(path)
					}
					repair()
					if err != nil || path.PastEnd != nil {
						detected++
						continue
					}
					assert.Equal(t, right.Revision, result.Revision, "%s bit %d", object, bit)
					assert.Equal(t, revisions(result.full+1, 20), result.revisions)
				}
			}
			assert.Positive(t, detected)
		})
	}
}

// singleStatements lists the objects that consist of a single statement.
var singleStatements = []string{
	"cluster.json", "gen/000001/generation.json", "reservation/0000000000000000100",
	"gen/000001/full/0000000000000000010-20261122T120010Z/manifest.json",
	"gen/000001/verified/0000000000000000010-20261122T120010Z_20261122T120100Z.json",
}

// FuzzManifests simulates an attacker with write access to the store who replaces statements with different ones
// whose checksums are valid.
func FuzzManifests(f *testing.F) {
	w := newTestWriter(f, &format.Keys{}, 14)
	require.NoError(f, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Generation: 1, Revision: 100, Created: Noon}))
	full := *w.head().Full
	require.NoError(f, w.PutResult(w.ctx, archive.Result{Generation: 1, Full: full.Name(), Outcome: archive.Verified, At: TimeAt(60)}))
	for _, name := range append(w.names("gen/000001/segment/"), singleStatements...) {
		content, exists := w.store.Content(name)
		require.True(f, exists, name)
		begin, _, _ := bytes.Cut(content, []byte(`,"sha256":"`+checksumOf(content)))
		f.Add(begin)
	}
	f.Fuzz(func(t *testing.T, begin []byte) {
		w := *w
		w.t = t
		for _, name := range singleStatements {
			right, _ := w.store.Content(name)
			w.store.SetContent(name, withChecksum(begin))
			result, err := w.tryRestore(archive.Target{})
			if err == nil {
				assert.Equal(t, revisions(result.full+1, result.Revision), result.revisions)
			}
			_, _ = w.Head(w.ctx, 1)
			_, _ = w.Reserved(w.ctx)
			w.store.SetContent(name, right)
		}
		w.store.SetContent(archive.SegmentName(1, format.After(14)), withChecksum(begin))
		_, _ = w.tryRestore(archive.Target{})
		_, _ = w.tryRestore(archive.Target{Time: TimeAt(15)})
		_, _ = w.Head(w.ctx, 1)
		require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, format.After(14))))
	})
}

// withChecksum appends a checksum to a line.
func withChecksum(begin []byte) []byte {
	return fmt.Appendf(bytes.Clone(begin), ",\"sha256\":\"%x\"}\n", sha256.Sum256(begin))
}

// checksumOf returns the checksum at the end of a line.
func checksumOf(line []byte) string {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return string(line[len(line)-66 : len(line)-2])
}

// The actors below simulate writers and restores that use a real archive. The tests try every order of the actors'
// steps: an actor may pause before any step, and any reply may be lost.

// A state is a store with one generation and the state of the actors that use the store.
type state struct {
	*testWriter
	actors     []step   // next step of each actor
	history    []string // labels of the steps that led to the state, for failure messages
	confirmed  int64    // last revision that was confirmed to a writer
	successors []int64  // for each successor of generation 1, the restored revision
	source     string   // name of the volume copy whose rows were confirmed; empty if none were
	owner      string   // ID of the cluster that owns the store; empty if the store is not initialized
	violation  string   // description of a violated guarantee; empty if there is none
}

// A step is the next action of an actor. An actor stops at a step whose do is nil.
type step struct {
	label string            // describes the action and the state of the actor
	do    func(*state) step // performs the action and returns the following step
}

// writeSteps simulates a writer that stores count segments of one row each. The writer stops early if a segment with
// different rows exists.
func writeSteps(from format.Start, count int) step { return copySteps("value ", from, count) }

// segmentOf returns a segment with one row whose value depends on the name of the volume copy.
func (s *state) segmentOf(volume string, from format.Start) format.Object {
	row := Row(from.Position.Revision, 0, fmt.Sprint(volume, from.Position.Revision))
	return Segment(s.t, s.Keys(), from, format.Source{Session: volume}, &row)
}

// confirm records that a writer has received a confirmation for a revision.
func (s *state) confirm(revision int64) {
	s.confirmed = max(s.confirmed, revision)
	for _, restored := range s.successors {
		if restored < revision {
			s.violation = fmt.Sprintf("revision %d was confirmed, but the successor starts at revision %d", revision, restored)
		}
	}
}

// copySteps is like writeSteps, but the rows depend on the name of the volume, as for members on copied volumes that
// have written different rows.
func copySteps(volume string, from format.Start, count int) step {
	if count == 0 {
		return step{}
	}
	return step{fmt.Sprint(volume, " writes ", from.Position, count), func(s *state) step {
		object := s.segmentOf(volume, from)
		err := archivetest.PutSegment(s.ctx, s.Archive, object)
		if errors.Is(err, store.ErrExists) {
			existing, failed := s.Manifest(s.ctx, 1, from.Position)
			if failed != nil || existing.After != object.After {
				return step{}
			}
			err = nil
		}
		if err != nil {
			s.violation = err.Error()
			return step{}
		}
		if s.source != "" && s.source != volume {
			s.violation = "a segment of volume " + volume + " follows a segment of volume " + s.source
		}
		s.source = volume
		s.confirm(object.End)
		return copySteps(volume, object.Start(), count-1)
	}}
}

// createSteps simulates a member of a new cluster that initializes the store.
func createSteps(id, owner string) step {
	return step{"creates cluster.json as " + id + owner, func(s *state) step {
		existing, err := s.CreateCluster(s.ctx, archive.Cluster{Cluster: id, Owner: owner, Created: Noon})
		if err != nil || existing.Owner != owner {
			return step{}
		}
		return step{"creates generation 1 as " + existing.Cluster + owner, func(s *state) step {
			generation, err := s.Create(s.ctx, existing, 1)
			if err != nil {
				return step{}
			}
			switch {
			case s.owner != "" && s.owner != generation.Cluster, generation.Cluster != existing.Cluster, generation.Owner != owner:
				s.violation = fmt.Sprintf("cluster %s of %s uses the store of cluster %s", existing.Cluster, owner, s.owner)
			}
			s.owner = generation.Cluster
			return step{}
		}}
	}}
}

// chainSteps simulates a writer that starts another chain after a gap and continues it.
func chainSteps(revision int64) step {
	return step{fmt.Sprint("reads the head to start a chain at ", revision), func(s *state) step {
		head := s.head()
		if head.Ending() != nil {
			return step{}
		}
		next := head.Next(first)
		return step{fmt.Sprint("stores full snapshot at ", revision, " after ", next), func(s *state) step {
			full := s.put(archive.Full{Revision: revision, Chain: format.Seed(cluster, 1, revision), Behind: &next, Session: "writer"})
			return linkSteps(full, "writer", 1)
		}}
	}}
}

// linkSteps simulates a writer that stores the link of a full snapshot and then count segments.
func linkSteps(full archive.Full, session string, count int) step {
	return step{fmt.Sprint("stores link of ", full.Name(), session, count), func(s *state) step {
		if s.Open(s.ctx, first, full, session) != nil {
			return step{}
		}
		s.confirm(full.Revision)
		return writeSteps(full.Start(), count)
	}}
}

// takeoverSteps simulates a member that becomes the writer: it stores a missing link and then writes.
func takeoverSteps() step {
	return step{"reads the head to take over", func(s *state) step {
		switch head := s.head(); {
		case head.Ending() != nil:
			return step{}
		case head.Unlinked == nil:
			return writeSteps(head.Start, 1)
		default:
			return linkSteps(*head.Full, "other", 1)
		}
	}}
}

// restoreSteps simulates a restore, which reads the generation, ends it, and creates the next generation with the same
// content.
func restoreSteps(session string) step { return successorSteps("restores", session) }

// adoptSteps is like restoreSteps, but the next generation has the data of an unrelated copy.
func adoptSteps(session string) step { return successorSteps("adopts", session) }

func successorSteps(action, session string) step {
	return step{"reads the head and " + action + " as " + session, func(s *state) step {
		read := s.head()
		return step{fmt.Sprint("ends ", read.Next(first), action, session), func(s *state) step {
			err := s.End(s.ctx, first, read, session, ending(session))
			if errors.Is(err, archive.ErrMoved) {
				return successorSteps(action, session)
			}
			restored, next := read.Revision(), archive.Generation{Number: 2, Cluster: cluster, Session: session, Created: Noon}
			switch {
			case action == "adopts": // the user has confirmed that backups missing from the copy may be lost
				restored, next.Adopted = math.MaxInt64, []string{"o"}
			case errors.Is(err, archive.ErrEnded): // another process has ended the generation: create the successor
				restored = s.head().Revision()
				fallthrough
			default:
				next.Parent, next.ParentRevision = 1, restored
			}
			return step{fmt.Sprint("creates generation 2 from ", restored, session), func(s *state) step {
				if s.BeginGeneration(s.ctx, next) == nil {
					s.addSuccessor(restored)
				}
				return step{}
			}}
		}}
	}}
}

// addSuccessor records that a successor was created from the given revision.
func (s *state) addSuccessor(restored int64) {
	if s.successors = append(s.successors, restored); len(s.successors) > 1 {
		s.violation = "there are two successors"
	}
	if restored < s.confirmed {
		s.violation = fmt.Sprintf("revision %d was confirmed, but the successor starts at revision %d", s.confirmed, restored)
	}
}

// after returns the state after the next step of an actor.
func (s *state) after(i int, replyLost bool) *state {
	writer := *s.testWriter
	writer.store, writer.fulls = s.store.Clone(), maps.Clone(s.fulls)
	writer.Archive = archive.New(writer.store, &format.Keys{})
	next := &state{
		testWriter: &writer, actors: slices.Clone(s.actors), confirmed: s.confirmed, successors: slices.Clone(s.successors),
		source: s.source, owner: s.owner,
	}
	if replyLost {
		writer.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	}
	next.actors[i] = next.actors[i].do(next)
	writer.store.ClearFaults()
	next.history = append(slices.Clone(s.history), fmt.Sprintf("%d %s", i, s.actors[i].label))
	return next
}

// key returns a hash of the state. States with equal hashes are explored only once.
func (s *state) key() [sha256.Size]byte {
	key := fmt.Append(nil, s.confirmed, s.successors, s.source, s.owner)
	for _, name := range s.names("") {
		content, _ := s.store.Content(name)
		key = fmt.Appendf(key, "\n%s %d ", name, len(content))
		key = append(key, content...)
	}
	for _, actor := range s.actors {
		key = append(append(key, '\n'), actor.label...)
	}
	return sha256.Sum256(key)
}

func TestSuccessor_hasAllConfirmedRevisions(t *testing.T) {
	for name, actors := range map[string]func(format.Start) []step{
		"a writer and two restores": func(from format.Start) []step {
			return []step{writeSteps(from, 3), restoreSteps("a"), restoreSteps("b")}
		},
		"two writers and two restores": func(from format.Start) []step {
			return []step{writeSteps(from, 2), takeoverSteps(), restoreSteps("a"), restoreSteps("b")}
		},
		"a new chain, a takeover and two restores": func(format.Start) []step {
			return []step{chainSteps(20), takeoverSteps(), restoreSteps("a"), restoreSteps("b")}
		},
		"a new chain, a writer of the old chain and a restore": func(from format.Start) []step {
			return []step{chainSteps(20), writeSteps(from, 2), restoreSteps("a")}
		},
		"two new chains, a takeover and a restore": func(format.Start) []step {
			return []step{chainSteps(20), chainSteps(30), takeoverSteps(), restoreSteps("a")}
		},
		"two copies of a volume and a restore": func(from format.Start) []step {
			return []step{copySteps("a", from, 2), copySteps("b", from, 2), restoreSteps("r")}
		},
		"two copies of a volume and the adoption of one": func(from format.Start) []step {
			return []step{copySteps("a", from, 2), copySteps("b", from, 1), adoptSteps("b")}
		},
		"a writer, two adoptions and a restore": func(from format.Start) []step {
			return []step{writeSteps(from, 1), adoptSteps("a"), adoptSteps("b"), restoreSteps("r")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			initial := &state{testWriter: newTestWriter(t, &format.Keys{})}
			initial.actors = actors(initial.next)
			initial.explore(t)
		})
	}
}

// If two clusters initialize a store at the same time, the store must belong to only one of them.
func TestCreate_oneCluster(t *testing.T) {
	s := memory.New()
	initial := &state{testWriter: &testWriter{Archive: archive.New(s, &format.Keys{}), t: t, ctx: t.Context(), store: s}}
	initial.actors = []step{createSteps("1", "a"), createSteps("2", "a"), createSteps("3", "b"), createSteps("4", "b")}
	initial.explore(t)
}

// explore runs the remaining steps of a state in every possible order.
func (s *state) explore(t *testing.T) {
	t.Helper()
	seen, queue := map[[sha256.Size]byte]bool{}, []*state{s}
	for len(queue) > 0 {
		current := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		require.Empty(t, current.violation, "after %q", current.history)
		key := current.key()
		if seen[key] {
			continue
		}
		seen[key] = true
		for i, actor := range current.actors {
			if actor.do == nil {
				continue
			}
			queue = append(queue, current.after(i, false))
			if !strings.Contains(actor.label, "reads the head") {
				queue = append(queue, current.after(i, true))
			}
		}
	}
	t.Logf("explored %d states", len(seen))
}
