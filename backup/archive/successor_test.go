package archive_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// The actors below do what writers and restores do, one request after the other, on the real archive. Every order of
// their steps is tried: each may be paused anywhere for any time, and each reply may be lost.

// A scene is a store with one generation, and what its actors know.
type scene struct {
	*world
	actors    []step
	history   []string
	confirmed int64   // last revision that was confirmed to a writer
	begun     []int64 // revision of generation 1 that each successor starts from
	told      string  // copy whose own object was confirmed
	founded   string  // cluster that owns the store
	broken    string  // a promise
}

// A step is what an actor does next, and what it knows by then. One without do ends the actor.
type step struct {
	knows string
	do    func(*scene) step
}

// writes stores a segment with one row, then another one, until it collides with other rows.
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

// copies acts as a copy of the volume with rows of its own. It ends when its object collides with other rows.
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

// founds acts as a member of a new cluster.
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

// opens starts another chain after a gap, and continues it.
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

// links makes a full snapshot count, and continues after it.
func links(full archive.Full, session string, more int) step {
	return step{fmt.Sprint("links ", full.Name(), session, more), func(s *scene) step {
		if s.Open(s.ctx, first, full, session) != nil {
			return step{}
		}
		s.confirm(full.Revision)
		return writes(full.Start(), more)
	}}
}

// looks acts as another member of the cluster that takes over: it completes what was left, and writes.
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

// restores reads the generation, ends it, and creates the next one with that content.
func restores(session string) step { return succeeds("restores", session) }

// adopts does so with the data of an unrelated copy.
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
			case how == "adopts": // the user gives up what is not in it
				has, next.Adopted = math.MaxInt64, []string{"o"}
			case errors.Is(err, archive.ErrEnded): // it completes that end
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
	world.store, world.fulls = memory.New(), maps.Clone(s.fulls)
	world.Archive = archive.New(world.store, &format.Keys{})
	for name, content := range s.objects() {
		require.NoError(s.t, world.store.Put(s.ctx, name, strings.NewReader(content)))
	}
	then := &scene{world: &world, actors: slices.Clone(s.actors), confirmed: s.confirmed, begun: slices.Clone(s.begun), told: s.told, founded: s.founded}
	if replyLost {
		world.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	}
	then.actors[i] = then.actors[i].do(then)
	world.store.ClearFaults()
	then.history = append(slices.Clone(s.history), fmt.Sprintf("%d %s", i, s.actors[i].knows))
	return then
}

func (s *scene) objects() map[string]string {
	all := map[string]string{}
	for _, name := range s.names("") {
		content, _ := s.store.Content(name)
		all[name] = string(content)
	}
	return all
}

// key distinguishes scenes that can continue differently.
func (s *scene) key() string {
	key := fmt.Sprint(s.confirmed, s.begun, s.told, s.founded, s.objects())
	for _, actor := range s.actors {
		key += "\n" + actor.knows
	}
	return key
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

// Members of one cluster found a store together with another cluster, of another namespace.
func TestCreate_oneCluster(t *testing.T) {
	s := memory.New()
	beginning := &scene{world: &world{Archive: archive.New(s, &format.Keys{}), t: t, ctx: t.Context(), store: s}}
	beginning.actors = []step{founds("1", "a"), founds("2", "a"), founds("3", "b"), founds("4", "b")}
	beginning.explore(t)
}

// explore tries every order of steps from a scene.
func (s *scene) explore(t *testing.T) {
	t.Helper()
	seen, queue := map[string]bool{}, []*scene{s}
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
