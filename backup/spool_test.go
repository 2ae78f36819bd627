package backup_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/internal/disk"
)

// waiting is a spool with segments for revisions 11 to 13, 14 to 16 and 17 to 19, and a store whose backups end at
// revision 10.
type waiting struct {
	*testing.T
	*backup.Backups
	store   *memory.Store
	archive *archive.Archive
	dir     string
	objects []format.Object
	log     bytes.Buffer
	results strings.Builder
}

var unsealed = &format.Keys{}

func newWaiting(t *testing.T) *waiting {
	t.Helper()
	w := &waiting{T: t, dir: filepath.Join(t.TempDir(), "spool")}
	w.useStore("c")
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(10), Before: format.Seed("c", 1, 10)}
	for last := int64(13); last < 20; last += 3 {
		object := Build(t, unsealed, start, Rows(last-2, last), Bucket("lease", "l", "1"))
		w.objects, start = append(w.objects, object), object.Start()
	}
	w.queue(w.objects...)
	return w
}

// queue adds segments to the spool.
func (w *waiting) queue(objects ...format.Object) {
	w.Helper()
	spool, torn, err := writer.OpenSpool(w.dir, 1<<20, unsealed)
	require.NoError(w, err)
	require.Empty(w, torn)
	for _, object := range objects {
		require.NoError(w, spool.Put(object, true))
	}
}

// useStore switches to an empty store or to a store that contains a full snapshot of a cluster.
func (w *waiting) useStore(cluster string) {
	w.Helper()
	w.store = memory.New()
	w.archive = archive.New(w.store, unsealed)
	w.Backups = backup.New(backup.Options{Store: w.store, Keys: unsealed, SpoolDir: w.dir, SpoolLimit: 1 << 20, Log: zerolog.New(&w.log)})
	if cluster == "" {
		return
	}
	_, err := w.archive.Create(w.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(w, err)
	_, err = archivetest.PutFull(w.Context(), w.archive, archive.Full{
		Cluster: cluster, Generation: 1, Revision: 10, Chain: format.Seed(cluster, 1, 10), Time: Noon, Reason: "requested",
	}, strings.NewReader("database"))
	require.NoError(w, err)
}

func (w *waiting) head() archive.Head {
	w.Helper()
	head, err := w.archive.Head(w.Context(), 1)
	require.NoError(w, err)
	return head
}

// queued returns the path of a queued segment.
func (w *waiting) queued(which int) string {
	return filepath.Join(w.dir, "segments", w.objects[which].Position.String())
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		all = append(all, entry.Name())
	}
	return all
}

// TestFlushSpool replays the histories in testdata/histories/spool.txt. Each history consists of changes to a spool
// and its store, and the results of uploading the spool. -rewrite updates the results.
func TestFlushSpool(t *testing.T) {
	datadriven.RunTest(t, "../testdata/histories/spool.txt", func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		w := newWaiting(t)
		for line := range strings.Lines(d.Input) {
			w.step(strings.Fields(line))
		}
		return w.results.String()
	})
}

// step executes one line.
func (w *waiting) step(words []string) {
	w.Helper()
	word := func(i int) string { return append(words, "", "", "")[i] }
	number := func(i int) int { is, _ := strconv.Atoi(word(i)); return is }
	switch words[0] {
	case "flush": // arguments: the cluster and the last revision of the data on the volume
		w.flush(archive.Identity{Cluster: word(1), Generation: min(1, len(words)-1)}, int64(number(2)))
	case "store": // stores the rows of queued segments, with the same or different values
		rows := Rows(int64(number(1)), int64(number(2)))
		if word(3) != "" {
			rows = []format.Row{Row(int64(number(1)), 0, word(3)), Row(int64(number(2)), 0, word(3))}
		}
		require.NoError(w, archivetest.PutSegment(w.Context(), w.archive, Build(w.T, unsealed, w.head().Start, rows)))
	case "tear":
		require.NoError(w, os.Truncate(w.queued(number(1)), w.objects[number(1)].Size()-1))
	case "remove":
		require.NoError(w, os.Remove(w.queued(number(1))))
	case "fail-once":
		name := archive.SegmentName(1, w.objects[number(1)].Position)
		w.store.Inject(memory.Fault{Op: memory.Put, Prefix: name, Times: 1, Err: &store.Unavailable{Cause: errors.New("HTTP status 503")}})
	case "use-store":
		w.useStore(word(1))
	case "end-generation":
		next := archive.Generation{Number: 2, Cluster: "d", Parent: 1, ParentRevision: 10, Created: Noon}
		require.NoError(w, archivetest.BeginGeneration(w.Context(), w.archive, next))
	case "sign-store":
		for _, name := range []string{"cluster.json", archive.GenerationPrefix(1) + "generation.json"} {
			require.NoError(w, w.store.Delete(w.Context(), name))
		}
		keys := LoadKeys(w.T, format.KeyFiles{SigningKey: NewKeys(w.T).SigningKey})
		_, err := archive.New(w.store, keys).Create(w.Context(), archive.Cluster{Cluster: "c", Created: Noon}, 1)
		require.NoError(w, err)
	default:
		require.Fail(w, "no such step", "%s", words)
	}
}

// flush uploads the spool and prints the warnings, the error and the location of each segment.
func (w *waiting) flush(data archive.Identity, reach int64) {
	w.Helper()
	w.log.Reset()
	failed := w.FlushSpool(w.Context(), data, reach)
	for line := range strings.Lines(w.log.String()) {
		var entry struct {
			Message string
			From    int64 `json:"from_revision"`
		}
		require.NoError(w, json.Unmarshal([]byte(line), &entry))
		fmt.Fprintln(&w.results, strings.TrimSuffix(fmt.Sprintf("%s, from revision %d", entry.Message, entry.From), ", from revision 0"))
	}
	if failed != nil {
		fmt.Fprintf(&w.results, "error: %s\n", failed)
	}
	segments, err := w.archive.Objects(w.Context(), 1, archive.Segment)
	require.NoError(w, err)
	for _, each := range segments {
		manifest, err := w.archive.Manifest(w.Context(), 1, each.Start)
		require.NoError(w, err)
		fmt.Fprintf(&w.results, "stored: from %s to revision %d %s\n", short(each.Start.String()), manifest.End, manifest.Buckets)
	}
	fmt.Fprintf(&w.results, "queued: %s\n", short(names(w.T, w.dir)...))
	for _, kept := range disk.PreservedCopies(w.dir) {
		fmt.Fprintf(&w.results, "preserved: %s\n", short(names(w.T, kept.Path)...))
	}
}

// short joins positions without leading zeros.
func short(positions ...string) string {
	for i := range positions {
		positions[i] = strings.TrimLeft(positions[i], "0")
	}
	return strings.Join(positions, ", ")
}

// FlushSpool must not upload a former leader's spooled leases if the new leader has changed a lease.
func TestFlushSpool_skipsOutdatedBuckets(t *testing.T) {
	w := newWaiting(t)
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(10), Before: format.Seed("c", 1, 10)}
	newer, err := format.NewSegmentBuilder(unsealed, start)
	require.NoError(t, err)
	require.NoError(t, newer.Add(Bucket("lease", "l", "newer")))
	stated, err := newer.Finish(format.Source{Term: 3, Member: "2"})
	require.NoError(t, err)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, stated))

	for which := range w.objects {
		require.NoError(t, os.Remove(w.queued(which)))
	}
	for _, rows := range [][]format.Row{nil, nil, Rows(11, 13), nil} {
		object := Build(t, unsealed, start, rows, Bucket("lease", "l", "older"))
		w.queue(object)
		start = object.Start()
	}
	w.flush(archive.Identity{}, 0)
	assert.Equal(t, `stored: from 11.000000000 to revision 10 [lease]
stored: from 11.000000001 to revision 13 [lease]
stored: from 14.000000000 to revision 13 [lease]
queued: 
`, w.results.String())
}

// follower is a member that is not the leader.
type follower struct{ writer.Etcd }

func (f follower) Identity() capture.Identity {
	identity := f.Etcd.Identity()
	identity.Leader = false
	return identity
}

// watch makes the subject a standby after the writer has stored all revisions and stopped.
func (s *subject) watch(t *testing.T) {
	t.Helper()
	s.put(t, 10)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.Revision == s.etcd.Revision() }, "everything is stored")
	s.nextRun(t)
	s.Begin(follower{writer.Server(s.etcd.Server)}, s.dir, "")
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Role == facts.Standby }, "another member writes")
}

// objects returns the names of all objects.
func (s *subject) objects(t *testing.T) (names []string) {
	t.Helper()
	for object, err := range s.store.List(t.Context(), "", "") {
		require.NoError(t, err)
		names = append(names, object.Name)
	}
	return names
}

func TestStandby_uploadsWhatTheWriterLeft(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.watch(t)
	s.put(t, 10)
	revision := s.etcd.Revision()
	s.stop(t)
	require.NoError(t, s.Flush(soon(t), s.database()))
	assert.Equal(t, revision, s.stored(t))
	history, err := archive.New(s.store, &format.Keys{}).History(t.Context())
	require.NoError(t, err)
	assert.Len(t, history.Newest().Fulls, 1, "segments are enough")
}

func TestStandby_leavesTasksToTheWriter(t *testing.T) {
	in := memory.New()
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "reservation/", Err: memory.ErrDenied})
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone != nil }, "the writer cannot reserve revisions")
	s.nextRun(t)
	in.ClearFaults()
	s.Begin(follower{writer.Server(s.etcd.Server)}, s.dir, "")
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Role == facts.Standby && !f.Listed.At.IsZero() }, "it lists the store")
	assert.Zero(t, s.reserved(t))
}

// If the store has all revisions but not the user, a standby must not report success, because the user might have
// been deleted in the meantime.
func TestStandby_doesNotClaimToHaveStoredUsers(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.watch(t)
	_, err := s.etcd.Client.UserAdd(t.Context(), "somebody", "secret")
	require.NoError(t, err)
	s.stop(t)
	before := s.objects(t)
	err = s.Flush(soon(t), s.database())
	require.ErrorIs(t, err, writer.ErrRowsOnly)
	assert.ErrorContains(t, err, "all revisions of this member")
	assert.Equal(t, before, s.objects(t))
}

func TestStandby_startsNoChain(t *testing.T) {
	for name, breaks := range map[string]func(t *testing.T, s *subject){
		"the store is empty": func(t *testing.T, s *subject) { t.Helper(); s.empty(t) },
		"a compaction has left a gap": func(t *testing.T, s *subject) {
			t.Helper()
			s.put(t, 10)
			_, err := s.etcd.Client.Compact(t.Context(), s.etcd.Revision())
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubject(t, archive.Verified)
			s.watch(t)
			s.end(t)
			breaks(t, s)
			s.etcd.Server.Stop()
			before := s.objects(t)
			require.ErrorIs(t, s.Flush(soon(t), s.database()), writer.ErrNoChain)
			assert.Equal(t, before, s.objects(t))
		})
	}
}

// empty deletes all objects.
func (s *subject) empty(t *testing.T) {
	t.Helper()
	for _, name := range s.objects(t) {
		require.NoError(t, s.store.Delete(t.Context(), name))
	}
}
