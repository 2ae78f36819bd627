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
	sealed := NewKeys(t).Load(t)
	rapid.Check(t, func(rt *rapid.T) {
		keys := &format.Keys{}
		if rapid.Bool().Draw(rt, "sealed") {
			keys = sealed
		}
		first := begin(rt, keys)
		writers := []*world{first, first.again()}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "writer")
			w, other := writers[i], writers[1-i]
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0:
				mergeSome(rt, w, other, archive.Minute, archive.Segment)
			case 1:
				mergeSome(rt, w, other, archive.Hour, archive.Minute)
			case 2:
				w.next = w.head().Start
				w.full()
			case 3: // full snapshot taken by a member that splits rows at different revisions
				if last := w.head().Revision(); last > 10 {
					other := w.again()
					other.next = unbroken(rt, keys, rapid.Int64Range(11, last).Draw(rt, "full")).Start()
					other.full()
				}
			default:
				write(rt, w)
			}
		}
		head := first.head()
		require.Equal(rt, unbroken(rt, keys, head.Revision()).After, head.Before, "the digest of a history that was never cut")
		target := archive.Target{Revision: rapid.Int64Range(10, head.Revision()).Draw(rt, "target")}
		result, _, err := first.instead(target)
		require.NoError(rt, err)
		require.Equal(rt, revisions(result.full+1, target.Revision), result.revisions)
		result, _, err = first.instead(archive.Target{})
		require.NoError(rt, err)
		require.Equal(rt, head.Before, result.Chain)
	})
}

// unbroken returns a single segment with all rows after the first full snapshot.
func unbroken(t T, keys *format.Keys, last int64) format.Object {
	start := format.Start{Cluster: cluster, Generation: 1, Position: format.After(10), Before: format.Seed(cluster, 1, 10)}
	return Build(t, keys, start, Rows(11, last))
}

// write stores the next segment. If the other writer has already stored that segment, write advances past it.
func write(rt *rapid.T, w *world) {
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
	if w.next = object.Start(); err != nil || w.stale { // the other writer has already stored this segment
		w.next, w.stale = w.head().Start, false
	}
}

// mergeSome merges neighboring objects of a level and deletes sources that have been merged.
func mergeSome(rt *rapid.T, w, other *world, into, from archive.Level) {
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
	if errors.Is(err, archive.ErrHole) { // the other writer has split the same rows at different revisions
		require.True(w.t, into == archive.Minute && overlapped(w, objects[begin:end]), "%s: %s", merged.Name(), err)
	} else if err != nil {
		require.ErrorIs(w.t, err, store.ErrExists)
	}
	w.deleteMerged()
	w.next, other.stale = w.head().Start, true
}

// deleteMerged deletes the sources of merged objects except the newest segment, even while the sources are being
// read.
func (w *world) deleteMerged() {
	segments, minutes, hours := w.objects(archive.Segment), w.objects(archive.Minute), w.objects(archive.Hour)
	w.deleteHeld(segments[:max(0, len(segments)-1)], slices.Concat(minutes, hours))
	w.deleteHeld(minutes, hours)
}

func (w *world) deleteHeld(objects, merged []archive.Object) {
	for _, one := range merged {
		for _, object := range retention.Covered(objects, one) {
			require.NoError(w.t, w.store.Delete(w.ctx, object.Name()))
		}
	}
}

// overlapped reports whether another segment or merged object overlaps the range of the given segments.
func overlapped(w *world, these []archive.Object) bool {
	from := these[0].Start
	last, err := w.Manifest(w.ctx, 1, these[len(these)-1].Start)
	require.NoError(w.t, err)
	all := slices.Concat(w.objects(archive.Segment), w.objects(archive.Minute), w.objects(archive.Hour))
	return slices.ContainsFunc(all, func(other archive.Object) bool {
		within := other.Start.Compare(from) > 0 || other.Next.Compare(from) > 0
		return within && other.Start.Compare(last.Next()) < 0 && !slices.Contains(these, other)
	})
}

// contiguous reports whether each object starts where the previous one ends.
func contiguous(w *world, objects []archive.Object) bool {
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
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed": NewKeys(t).Load(t)} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, keys)
			w.segment(14, Bucket("lease", "a", "1"))
			w.full()
			w.segments(18, 20)
			w.merge(archive.Minute, w.objects(archive.Segment)[:2]...)
			right := w.restore(archive.Target{})
			noticed := 0
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
						result, err = w.follow(path)
					}
					repair()
					if err != nil || path.PastEnd != nil {
						noticed++
						continue
					}
					assert.Equal(t, right.Revision, result.Revision, "%s bit %d", object, bit)
					assert.Equal(t, revisions(result.full+1, 20), result.revisions)
				}
			}
			assert.Positive(t, noticed)
		})
	}
}

// statementsOf lists the objects that consist of a single statement.
var statementsOf = []string{
	"cluster.json", "gen/000001/generation.json", "reservation/0000000000000000100",
	"gen/000001/full/0000000000000000010-20261122T120010Z/manifest.json",
	"gen/000001/verified/0000000000000000010-20261122T120010Z_20261122T120100Z.json",
}

// FuzzManifests simulates an attacker with write access to the store who replaces statements with different ones
// whose checksums are valid.
func FuzzManifests(f *testing.F) {
	w := begin(f, &format.Keys{}, 14)
	require.NoError(f, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Generation: 1, Revision: 100, Created: Noon}))
	full := *w.head().Full
	require.NoError(f, w.PutResult(w.ctx, archive.Result{Generation: 1, Full: full.Name(), Outcome: archive.Verified, At: TimeAt(60)}))
	for _, name := range append(w.names("gen/000001/segment/"), statementsOf...) {
		content, exists := w.store.Content(name)
		require.True(f, exists, name)
		begin, _, _ := bytes.Cut(content, []byte(`,"sha256":"`+checksumOf(content)))
		f.Add(begin)
	}
	f.Fuzz(func(t *testing.T, begin []byte) {
		w := *w
		w.t = t
		for _, name := range statementsOf {
			right, _ := w.store.Content(name)
			w.store.SetContent(name, checked(begin))
			result, err := w.try(archive.Target{})
			if err == nil {
				assert.Equal(t, revisions(result.full+1, result.Revision), result.revisions)
			}
			_, _ = w.Head(w.ctx, 1)
			_, _ = w.Reserved(w.ctx)
			w.store.SetContent(name, right)
		}
		w.store.SetContent(archive.SegmentName(1, format.After(14)), checked(begin))
		_, _ = w.try(archive.Target{})
		_, _ = w.try(archive.Target{Time: TimeAt(15)})
		_, _ = w.Head(w.ctx, 1)
		require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, format.After(14))))
	})
}

// checked appends a checksum to a line.
func checked(begin []byte) []byte {
	return fmt.Appendf(bytes.Clone(begin), ",\"sha256\":\"%x\"}\n", sha256.Sum256(begin))
}

// checksumOf returns the checksum at the end of a line.
func checksumOf(line []byte) string {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return string(line[len(line)-66 : len(line)-2])
}

// The actors below simulate writers and restores that use a real archive. The tests try every order of the actors'
// steps: an actor may pause before any step, and any reply may be lost.

// A scene is a store with one generation and the state of the actors that use the store.
type scene struct {
	*world
	actors    []step
	history   []string
	confirmed int64   // last revision that was confirmed to a writer
	begun     []int64 // revision of generation 1 that each successor starts with
	told      string  // copy whose object is confirmed to be stored
	founded   string  // cluster that owns the store
	broken    string  // violated guarantee
}

// A step is the next action of an actor, together with the actor's state. An actor stops at a step whose do is nil.
type step struct {
	knows string
	do    func(*scene) step
}

// writes simulates a writer that stores segments of one row until a segment with different rows exists.
func writes(from format.Start, left int) step { return copies("value ", from, left) }

func (s *scene) rowOf(who string, from format.Start) format.Object {
	row := Row(from.Position.Revision, 0, fmt.Sprint(who, from.Position.Revision))
	return Segment(s.t, s.Keys(), from, format.Source{Session: who}, &row)
}

func (s *scene) confirm(revision int64) {
	s.confirmed = max(s.confirmed, revision)
	for _, has := range s.begun {
		if has < revision {
			s.broken = fmt.Sprintf("revision %d was told as stored, and the successor has %d", revision, has)
		}
	}
}

// copies simulates a member on a copied volume that writes its own rows. The member stops when a segment with
// different rows exists.
func copies(who string, from format.Start, left int) step {
	if left == 0 {
		return step{}
	}
	return step{fmt.Sprint(who, " writes ", from.Position, left), func(s *scene) step {
		object := s.rowOf(who, from)
		err := archivetest.PutSegment(s.ctx, s.Archive, object)
		if errors.Is(err, store.ErrExists) {
			there, failed := s.Manifest(s.ctx, 1, from.Position)
			if failed != nil || there.After != object.After {
				return step{}
			}
			err = nil
		}
		if err != nil {
			s.broken = err.Error()
			return step{}
		}
		if s.told != "" && s.told != who {
			s.broken = "objects of " + who + " are behind those of " + s.told
		}
		s.told = who
		s.confirm(object.End)
		return copies(who, object.Start(), left-1)
	}}
}

// founds simulates a member of a new cluster that initializes the store.
func founds(id, owner string) step {
	return step{"founds as " + id + owner, func(s *scene) step {
		there, err := s.CreateCluster(s.ctx, archive.Cluster{Cluster: id, Owner: owner, Created: Noon})
		if err != nil || there.Owner != owner {
			return step{}
		}
		return step{"begins as " + there.Cluster + owner, func(s *scene) step {
			generation, err := s.Create(s.ctx, there, 1)
			if err != nil {
				return step{}
			}
			switch {
			case s.founded != "" && s.founded != generation.Cluster, generation.Cluster != there.Cluster, generation.Owner != owner:
				s.broken = fmt.Sprintf("%s of %s takes the store of %s for its own", there.Cluster, owner, s.founded)
			}
			s.founded = generation.Cluster
			return step{}
		}}
	}}
}

// opens simulates a writer that starts another chain after a gap and continues it.
func opens(revision int64) step {
	return step{fmt.Sprint("looks, to open ", revision), func(s *scene) step {
		head := s.head()
		if head.Ending() != nil {
			return step{}
		}
		next := head.Next(first)
		return step{fmt.Sprint("opens ", revision, " behind ", next), func(s *scene) step {
			full := s.put(archive.Full{Revision: revision, Chain: format.Seed(cluster, 1, revision), Behind: &next, Session: "writer"})
			return links(full, "writer", 1)
		}}
	}}
}

// links simulates a writer that stores the link of a full snapshot and continues the chain from the snapshot.
func links(full archive.Full, session string, more int) step {
	return step{fmt.Sprint("links ", full.Name(), session, more), func(s *scene) step {
		if s.Open(s.ctx, first, full, session) != nil {
			return step{}
		}
		s.confirm(full.Revision)
		return writes(full.Start(), more)
	}}
}

// looks simulates a member that takes over from another one: it completes pending objects and then writes.
func looks() step {
	return step{"looks", func(s *scene) step {
		switch head := s.head(); {
		case head.Ending() != nil:
			return step{}
		case head.Unlinked == nil:
			return writes(head.Start, 1)
		default:
			return links(*head.Full, "another", 1)
		}
	}}
}

// restores simulates a restore, which reads the generation, ends it, and creates the next generation with the same
// content.
func restores(session string) step { return succeeds("restores", session) }

// adopts is like restores, but the next generation has the data of an unrelated copy.
func adopts(session string) step { return succeeds("adopts", session) }

func succeeds(how, session string) step {
	return step{"reads, " + how + " as " + session, func(s *scene) step {
		read := s.head()
		return step{fmt.Sprint("ends ", read.Next(first), how, session), func(s *scene) step {
			err := s.End(s.ctx, first, read, session, ending(session))
			if errors.Is(err, archive.ErrMoved) {
				return succeeds(how, session)
			}
			has, next := read.Revision(), archive.Generation{Number: 2, Cluster: cluster, Session: session, Created: Noon}
			switch {
			case how == "adopts": // the user has confirmed that backups missing from the copy may be lost
				has, next.Adopted = math.MaxInt64, []string{"o"}
			case errors.Is(err, archive.ErrEnded): // only the successor is missing
				has = s.head().Revision()
				fallthrough
			default:
				next.Parent, next.ParentRevision = 1, has
			}
			return step{fmt.Sprint("begins with ", has, session), func(s *scene) step {
				if s.BeginGeneration(s.ctx, next) == nil {
					s.begin(has)
				}
				return step{}
			}}
		}}
	}}
}

func (s *scene) begin(has int64) {
	if s.begun = append(s.begun, has); len(s.begun) > 1 {
		s.broken = "there are two successors"
	}
	if has < s.confirmed {
		s.broken = fmt.Sprintf("revision %d was told as stored, and the successor begins with %d", s.confirmed, has)
	}
}

// after returns the scene after the next step of an actor.
func (s *scene) after(i int, replyLost bool) *scene {
	world := *s.world
	world.store, world.fulls = s.store.Clone(), maps.Clone(s.fulls)
	world.Archive = archive.New(world.store, &format.Keys{})
	then := &scene{world: &world, actors: slices.Clone(s.actors), confirmed: s.confirmed, begun: slices.Clone(s.begun), told: s.told, founded: s.founded}
	if replyLost {
		world.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	}
	then.actors[i] = then.actors[i].do(then)
	world.store.ClearFaults()
	then.history = append(slices.Clone(s.history), fmt.Sprintf("%d %s", i, s.actors[i].knows))
	return then
}

// key returns a hash of the scene's state. Scenes with equal hashes are explored only once.
func (s *scene) key() [sha256.Size]byte {
	key := fmt.Append(nil, s.confirmed, s.begun, s.told, s.founded)
	for _, name := range s.names("") {
		content, _ := s.store.Content(name)
		key = fmt.Appendf(key, "\n%s %d ", name, len(content))
		key = append(key, content...)
	}
	for _, actor := range s.actors {
		key = append(append(key, '\n'), actor.knows...)
	}
	return sha256.Sum256(key)
}

func TestSuccessor_hasAllConfirmedRevisions(t *testing.T) {
	for name, actors := range map[string]func(format.Start) []step{
		"a writer and two restores": func(from format.Start) []step {
			return []step{writes(from, 3), restores("a"), restores("b")}
		},
		"two writers and two restores": func(from format.Start) []step {
			return []step{writes(from, 2), looks(), restores("a"), restores("b")}
		},
		"a chain that begins, a member that completes it, and two restores": func(format.Start) []step {
			return []step{opens(20), looks(), restores("a"), restores("b")}
		},
		"a chain that begins while another member writes, and a restore": func(from format.Start) []step {
			return []step{opens(20), writes(from, 2), restores("a")}
		},
		"two chains that begin, a member that completes one, and a restore": func(format.Start) []step {
			return []step{opens(20), opens(30), looks(), restores("a")}
		},
		"two copies of a volume, and a restore": func(from format.Start) []step {
			return []step{copies("a", from, 2), copies("b", from, 2), restores("r")}
		},
		"two copies of which one is adopted": func(from format.Start) []step {
			return []step{copies("a", from, 2), copies("b", from, 1), adopts("b")}
		},
		"two adoptions and a restore": func(from format.Start) []step {
			return []step{writes(from, 1), adopts("a"), adopts("b"), restores("r")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			beginning := &scene{world: begin(t, &format.Keys{})}
			beginning.actors = actors(beginning.next)
			beginning.explore(t)
		})
	}
}

// If two clusters initialize a store at the same time, the store must belong to only one of them.
func TestCreate_oneCluster(t *testing.T) {
	s := memory.New()
	beginning := &scene{world: &world{Archive: archive.New(s, &format.Keys{}), t: t, ctx: t.Context(), store: s}}
	beginning.actors = []step{founds("1", "a"), founds("2", "a"), founds("3", "b"), founds("4", "b")}
	beginning.explore(t)
}

// explore runs the remaining steps of a scene in every possible order.
func (s *scene) explore(t *testing.T) {
	t.Helper()
	seen, queue := map[[sha256.Size]byte]bool{}, []*scene{s}
	for len(queue) > 0 {
		here := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		require.Empty(t, here.broken, "after %q", here.history)
		key := here.key()
		if seen[key] {
			continue
		}
		seen[key] = true
		for i, actor := range here.actors {
			if actor.do == nil {
				continue
			}
			queue = append(queue, here.after(i, false))
			if !strings.Contains(actor.knows, "looks") && !strings.Contains(actor.knows, "reads") {
				queue = append(queue, here.after(i, true))
			}
		}
	}
	t.Logf("%d places", len(seen))
}
