package restore

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/folder"
)

// otherReader is an independent program that was written from docs/backup-format.md alone.
const otherReader = "../../testdata/reader/read_backups.py"

// otherState is the output of otherReader.
type otherState struct {
	Revision int64                  `json:"revision"`
	Keys     []*mvccpb.KeyValue     `json:"keys"`
	Buckets  map[string][][2][]byte `json:"buckets"`
}

func requirePrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed", name)
		}
	}
}

// runOtherReader runs the other reader for a revision. It returns the reader's output, or what the reader wrote to
// stderr if it failed.
func runOtherReader(t *testing.T, directory string, revision int64, options ...string) (state otherState, failed string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "python3", append(append([]string{otherReader}, options...), directory, strconv.FormatInt(revision, 10))...)
	var out, stderr bytes.Buffer
	command.Stdout, command.Stderr = &out, &stderr
	if err := command.Run(); err != nil {
		require.NotContains(t, stderr.String(), "Traceback")
		return state, stderr.String()
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &state))
	return state, ""
}

// keptHistory is an etcd history that is stored in a folder in the wrapper's format, along with the keys that a
// client read at each revision.
type keptHistory struct {
	*history
	directory      string
	archive        *archive.Archive
	keysAtRevision map[int64][]*mvccpb.KeyValue
	next           format.Start
}

func keepHistory(t *testing.T, keys *format.Keys) *keptHistory {
	k := &keptHistory{history: newHistory(t, 20), directory: t.TempDir(), keysAtRevision: map[int64][]*mvccpb.KeyValue{}}
	place, err := folder.New(k.directory)
	require.NoError(t, err)
	k.archive = archive.New(place, keys)
	_, err = k.archive.Create(t.Context(), archive.Cluster{Cluster: "cdf818194e3a8c32", Created: time.Now()}, 1)
	require.NoError(t, err)
	for range 70 {
		k.run(1)
		answer, err := k.client.Get(t.Context(), "\x00", clientv3.WithFromKey())
		require.NoError(t, err)
		k.keysAtRevision[answer.Header.Revision] = answer.Kvs
	}
	k.keep()
	return k
}

// keep stores full snapshots and segments and merges some of the segments. Some full snapshots are taken in the
// middle of a segment.
func (k *keptHistory) keep() {
	for i, full := range k.fulls {
		// If a chain starts at a later snapshot, the previous chain continues past that snapshot.
		startsChain := i == 0 || i%3 == 2
		if i > 0 && !startsChain {
			k.segments(full.revision)
		}
		k.putFull(full, time.Now().Add(time.Duration(i)*time.Minute), startsChain)
		if i > 0 && startsChain {
			last := k.currentRevision()
			if i+1 < len(k.fulls) {
				last = k.fulls[i+1].revision
			}
			k.segments(min(last, full.revision+1+k.random.Int64N(3)))
		}
	}
	k.segments(k.currentRevision())
	for _, level := range []archive.Level{archive.Minute, archive.Hour} {
		from := map[archive.Level]archive.Level{archive.Minute: archive.Segment, archive.Hour: archive.Minute}[level]
		objects, err := k.archive.Objects(k.t.Context(), 1, from)
		require.NoError(k.t, err)
		for len(objects) > 4 {
			merged, err := k.archive.Merge(k.t.Context(), level, objects[:3])
			require.NoError(k.t, err)
			require.NotEmpty(k.t, merged.Segments)
			for _, source := range objects[:3] {
				require.NoError(k.t, k.archive.Store().Delete(k.t.Context(), source.Name()))
			}
			objects = objects[3:]
		}
	}
}

func (k *keptHistory) putFull(full full, at time.Time, startsChain bool) {
	t, manifest := k.t, archive.Full{
		Cluster: "cdf818194e3a8c32", Generation: 1, Revision: full.revision, Time: at, Compacted: full.compacted, Reason: "for a test",
		Next: k.next.Position, Chain: k.next.Before, Last: k.next.Last,
	}
	if startsChain {
		manifest.Next, manifest.Chain, manifest.Last = format.After(full.revision), format.Seed(manifest.Cluster, 1, full.revision), format.Digest{}
	}
	content, err := os.Open(full.path)
	require.NoError(t, err)
	defer content.Close()
	info, err := content.Stat()
	require.NoError(t, err)
	stored, err := archivetest.PutFull(t.Context(), k.archive, manifest, io.LimitReader(content, info.Size()-32))
	require.NoError(t, err)
	if k.next.Position.IsZero() {
		k.next = stored.Start()
	}
}

// segments stores the rows after the last segment up to a revision. A segment covers up to three revisions. A segment
// that covers no revision contains no rows.
func (k *keptHistory) segments(upTo int64) {
	for k.next.Position.Revision <= upTo {
		end := min(upTo, k.next.Position.Revision+k.random.Int64N(4)-1)
		builder, err := format.NewSegmentBuilder(k.archive.Keys(), k.next)
		require.NoError(k.t, err)
		for _, row := range k.between(k.next.Position.Revision-1, end) {
			require.NoError(k.t, builder.Add(&row))
		}
		require.NoError(k.t, builder.Add(&format.Marker{Revision: builder.End(), Time: time.Now()}))
		for _, at := range k.moments {
			if at.revision == builder.End() {
				for _, bucket := range at.buckets {
					require.NoError(k.t, builder.Add(ordered(bucket)))
				}
				break
			}
		}
		object, err := builder.Finish(format.Source{Term: 2, Member: "8e9e05c52164694d"})
		require.NoError(k.t, err)
		require.NoError(k.t, archivetest.PutSegment(k.t.Context(), k.archive, object))
		k.next = object.Start()
	}
}

// ordered returns a bucket with its entries sorted by key, because etcd lists uncommitted entries first.
func ordered(bucket *format.Bucket) *format.Bucket {
	entries := maps.Collect(func(yield func(string, string) bool) {
		for key, value := range bucket.Entries() {
			yield(string(key), string(value))
		}
	})
	sorted := format.NewBucket(bucket.Name)
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		sorted.Add([]byte(key), []byte(entries[key]))
	}
	return sorted
}

// requireBuckets compares the buckets in the segments with the output of the other reader.
func (k *keptHistory) requireBuckets(state otherState) (compared int) {
	path, err := k.archive.Find(k.t.Context(), archive.Target{Revision: state.Revision})
	require.NoError(k.t, err)
	reading, err := k.archive.Read(k.t.Context(), path, func(format.Row) error { return nil })
	require.NoError(k.t, err)
	for _, bucket := range reading.Buckets {
		got := format.NewBucket(bucket.Name)
		for _, entry := range state.Buckets[bucket.Name] {
			got.Add(entry[0], entry[1])
		}
		require.Equal(k.t, bucket.Digest(), got.Digest(), bucket.Name)
		compared++
	}
	return compared
}

func TestOtherReader_agreesWithEtcd(t *testing.T) {
	requirePrograms(t, "python3", "zstd")
	for sealing, need := range map[string][]string{"plain": nil, "encrypted": {"age"}} {
		t.Run(sealing, func(t *testing.T) {
			requirePrograms(t, need...)
			keys, options := &format.Keys{}, []string(nil)
			if sealing == "encrypted" {
				pair := formattest.NewKeys(t)
				keys, options = pair.Load(t), []string{"--identities", pair.Identities}
			}
			k := keepHistory(t, keys)
			compared, buckets := 0, 0
			for revision, want := range k.keysAtRevision {
				if revision < k.fulls[0].revision || compared == 8 && revision != k.currentRevision() {
					continue
				}
				compared++
				got, failed := runOtherReader(t, k.directory, revision, options...)
				require.Empty(t, failed, "revision %d", revision)
				require.Equal(t, want, got.Keys, "revision %d", revision)
				// A bucket in a full snapshot may be newer than the snapshot's revision.
				if !slices.ContainsFunc(k.fulls, func(f full) bool { return f.revision == revision }) {
					buckets += k.requireBuckets(got)
				}
			}
			assert.Greater(t, compared, 7)
			assert.NotZero(t, buckets)
		})
	}
}

func TestOtherReader_rejectsHoles(t *testing.T) {
	requirePrograms(t, "python3", "zstd")
	k := keepHistory(t, &format.Keys{})
	head, err := k.archive.Head(t.Context(), 1)
	require.NoError(t, err)
	gone := archive.SegmentName(1, head.Segment.Position)
	require.NoError(t, os.Remove(filepath.Join(k.directory, gone)))
	_, failed := runOtherReader(t, k.directory, k.currentRevision())
	require.Contains(t, failed, head.Segment.Position.String())
	before := head.Segment.Position.Revision - 1
	_, failed = runOtherReader(t, k.directory, before)
	require.Empty(t, failed)
}
