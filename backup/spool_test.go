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

// spoolTest contains a spool with segments for the revisions 11 to 13, 14 to 16 and 17 to 19, and a store whose
// backups end at revision 10.
type spoolTest struct {
	*testing.T
	*backup.Backups
	store   *memory.Store
	archive *archive.Archive
	dir     string
	objects []format.Object // the initial segments of the spool
	log     bytes.Buffer
	results strings.Builder // output of the history
}

var unsealed = &format.Keys{}

func newSpoolTest(t *testing.T) *spoolTest {
	t.Helper()
	w := &spoolTest{T: t, dir: filepath.Join(t.TempDir(), "spool")}
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
func (w *spoolTest) queue(objects ...format.Object) {
	w.Helper()
	spool, torn, err := writer.OpenSpool(w.dir, 1<<20, unsealed)
	require.NoError(w, err)
	require.Empty(w, torn)
	for _, object := range objects {
		require.NoError(w, spool.Put(object, true))
	}
}

// useStore switches to a new store. The store is empty if cluster is empty. Otherwise, it contains a full snapshot of
// the cluster at revision 10.
func (w *spoolTest) useStore(cluster string) {
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

func (w *spoolTest) head() archive.Head {
	w.Helper()
	head, err := w.archive.Head(w.Context(), 1)
	require.NoError(w, err)
	return head
}

// queued returns the path of the file that contains an initial segment.
func (w *spoolTest) queued(index int) string {
	return filepath.Join(w.dir, "segments", w.objects[index].Position.String())
}

// names returns the file names of the segments in a spool directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		all = append(all, entry.Name())
	}
	return all
}

// TestFlushSpool replays the histories in testdata/histories/spool.txt. Each history is a list of changes to a spool
// and its store, with the expected results of uploading the spool. The flag -rewrite updates the results.
func TestFlushSpool(t *testing.T) {
	datadriven.RunTest(t, "../testdata/histories/spool.txt", func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		w := newSpoolTest(t)
		for line := range strings.Lines(d.Input) {
			w.step(strings.Fields(line))
		}
		return w.results.String()
	})
}

// step executes one line of a history.
func (w *spoolTest) step(words []string) {
	w.Helper()
	word := func(i int) string { return append(words, "", "", "")[i] }
	number := func(i int) int { value, _ := strconv.Atoi(word(i)); return value }
	switch words[0] {
	case "flush": // arguments: the cluster and the last revision of the data on the volume
		w.flush(archive.Identity{Cluster: word(1), Generation: min(1, len(words)-1)}, int64(number(2)))
	case "store": // arguments: the first and last revision, and a value that differs from the queued rows
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
		require.Fail(w, "unknown step", "%s", words)
	}
}

// flush calls FlushSpool and prints the warnings, the error, and which segments are stored, queued or preserved.
func (w *spoolTest) flush(data archive.Identity, reach int64) {
	w.Helper()
	w.log.Reset()
	flushErr := w.FlushSpool(w.Context(), data, reach)
	for line := range strings.Lines(w.log.String()) {
		var entry struct {
			Message string
			From    int64 `json:"from_revision"`
		}
		require.NoError(w, json.Unmarshal([]byte(line), &entry))
		fmt.Fprintln(&w.results, strings.TrimSuffix(fmt.Sprintf("%s, from revision %d", entry.Message, entry.From), ", from revision 0"))
	}
	if flushErr != nil {
		fmt.Fprintf(&w.results, "error: %s\n", flushErr)
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

// short removes leading zeros from positions and joins the results.
func short(positions ...string) string {
	for i := range positions {
		positions[i] = strings.TrimLeft(positions[i], "0")
	}
	return strings.Join(positions, ", ")
}

// FlushSpool must not upload the leases in the spool of a previous leader if the new leader has stored newer ones.
func TestFlushSpool_skipsOutdatedBuckets(t *testing.T) {
	w := newSpoolTest(t)
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(10), Before: format.Seed("c", 1, 10)}
	newer, err := format.NewSegmentBuilder(unsealed, start)
	require.NoError(t, err)
	require.NoError(t, newer.Add(Bucket("lease", "l", "newer")))
	object, err := newer.Finish(format.Source{Term: 3, Member: "2"})
	require.NoError(t, err)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, object))

	for i := range w.objects {
		require.NoError(t, os.Remove(w.queued(i)))
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

// follower overrides the identity of a member so that it is never the leader.
type follower struct{ writer.Etcd }

func (f follower) Identity() capture.Identity {
	identity := f.Etcd.Identity()
	identity.Leader = false
	return identity
}

// becomeStandby stores all revisions, ends the backups, and starts new ones whose member is not the leader.
func (s *subject) becomeStandby(t *testing.T) {
	t.Helper()
	s.put(t, 10)
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Writer.Revision == s.etcd.Revision()
	}, "all revisions are stored")
	s.nextRun(t)
	s.Begin(follower{writer.Server(s.etcd.Server)}, s.dir, "")
	s.eventually(t, func(f backup.Facts) bool { return f.Writer.Role == facts.Standby }, "the member is a standby")
}

// objects returns the names of all objects in the store.
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
	s.becomeStandby(t)
	s.put(t, 10)
	revision := s.etcd.Revision()
	s.stop(t)
	require.NoError(t, s.Flush(soon(t), s.database()))
	assert.Equal(t, revision, s.stored(t))
	history, err := archive.New(s.store, &format.Keys{}).History(t.Context())
	require.NoError(t, err)
	assert.Len(t, history.Newest().Fulls, 1, "the standby makes no full snapshot")
}

func TestStandby_leavesTasksToTheWriter(t *testing.T) {
	in := memory.New()
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "reservation/", Err: memory.ErrDenied})
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.TaskProblem != nil }, "the failed reservation is reported")
	s.nextRun(t)
	in.ClearFaults()
	s.Begin(follower{writer.Server(s.etcd.Server)}, s.dir, "")
	s.eventually(t, func(f backup.Facts) bool {
		return f.Writer.Role == facts.Standby && !f.Listed.At.IsZero()
	}, "the standby has listed the store")
	assert.Zero(t, s.reserved(t))
}

// If the store has all revisions but not the new user, a standby must neither upload the user, who might have been
// deleted since then, nor report success.
func TestStandby_doesNotClaimToHaveStoredUsers(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.becomeStandby(t)
	_, err := s.etcd.Client.UserAdd(t.Context(), "user", "secret")
	require.NoError(t, err)
	s.stop(t)
	before := s.objects(t)
	err = s.Flush(soon(t), s.database())
	require.ErrorIs(t, err, writer.ErrRowsOnly)
	assert.ErrorContains(t, err, "all revisions of this member")
	assert.Equal(t, before, s.objects(t))
}

func TestStandby_startsNoChain(t *testing.T) {
	for name, breakChain := range map[string]func(t *testing.T, s *subject){
		"the store is empty": func(t *testing.T, s *subject) { t.Helper(); s.emptyStore(t) },
		"a compaction has left a gap": func(t *testing.T, s *subject) {
			t.Helper()
			s.put(t, 10)
			_, err := s.etcd.Client.Compact(t.Context(), s.etcd.Revision())
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubject(t, archive.Verified)
			s.becomeStandby(t)
			s.end(t)
			breakChain(t, s)
			s.etcd.Server.Stop()
			before := s.objects(t)
			require.ErrorIs(t, s.Flush(soon(t), s.database()), writer.ErrNoChain)
			assert.Equal(t, before, s.objects(t))
		})
	}
}

// emptyStore deletes all objects in the store.
func (s *subject) emptyStore(t *testing.T) {
	t.Helper()
	for _, name := range s.objects(t) {
		require.NoError(t, s.store.Delete(t.Context(), name))
	}
}
