package writer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/ack"
	"etcd-wrapper/cmd/suites/etcdtest"
	"etcd-wrapper/internal/disk"
)

// TestHistories replays the histories in testdata/histories/writer, which are described in
// testdata/histories/README.md. A history is a list of steps and their expected output. The flag -rewrite updates the
// output.
func TestHistories(t *testing.T) {
	datadriven.Walk(t, "../../testdata/histories/writer", func(t *testing.T, file string) {
		t.Parallel()
		datadriven.RunTest(t, file, runHistory)
	})
}

// runHistory replays a history once for each value of its variable, or once if it has none, and returns the output. If
// consecutive values have the same output, it is listed only for the first of them.
func runHistory(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	variable, values := datadriven.CmdArg{}, []string{filepath.Base(d.Pos)}
	if len(d.CmdArgs) > 0 {
		variable = d.CmdArgs[0]
		values = variable.Vals
	}
	var all, last string
	for _, value := range values {
		t.Run(value, func(t *testing.T) {
			h := newHistory(t, d.Cmd)
			for line := range strings.Lines(strings.ReplaceAll(d.Input, "$"+variable.Key, value)) {
				h.step(strings.Fields(line))
			}
			results := h.results.String()
			if variable.Key != "" && results != last {
				all += value + ":\n"
			}
			if results != last {
				all += results
			}
			last = results
		})
	}
	return all
}

// history is the state of a history that is being replayed.
type history struct {
	*cluster  // has no members if the history uses only the embedded harness
	results   strings.Builder
	puts      int
	compacted int64             // revision of etcd's last compaction
	pending   []<-chan error    // results of requests made by "ask" and similar steps, not yet printed by "answer"
	volume    atomic.Value      // free space of the simulated volume: "free", "segments-only" or "full"
	marked    map[string][]byte // contents of the store at the last "mark"
	uploads   int               // number of segment uploads at the last "count-uploads"
	uploading <-chan struct{}   // receives a value for each upload blocked by "hold"
	release   func()            // unblocks the uploads blocked by "hold"
	past      Etcd              // copy of etcd made by "past-etcd"
	keys      *format.Keys      // keys of signed backups; nil until the first "signed"
	stores    []*memory.Store   // stores replaced by "new-store", oldest first
}

// sizes maps each kind of history to its number of members. The kinds with no members use only the embedded harness.
var sizes = map[string]int{"new": 0, "chain": 0, "member": 1, "two": 2, "three": 3}

func newHistory(t *testing.T, kind string) *history {
	t.Helper()
	h := &history{cluster: &cluster{harness: newSequentialHarness(t)}}
	size, exists := sizes[kind]
	require.True(t, exists, "unknown kind of history: %s", kind)
	h.volume.Store("free")
	h.tune = append(h.tune, func(w *Writer) { w.snapshots.room = h.room })
	h.leader.Store(1)
	h.addMembers(size)
	if kind == "chain" {
		h.run()
		h.putAndFlush("first", "value")
	}
	return h
}

// room returns ErrSpoolFull if the simulated volume has no room for size bytes.
func (h *history) room(size int64) error {
	const database = 16 << 10 // larger than any segment
	if volume := h.volume.Load(); volume == "full" || volume == "segments-only" && size != maxSegment && size >= database {
		return ErrSpoolFull
	}
	return nil
}

// step executes one line. A line may start with the number of the member that it applies to.
func (h *history) step(words arguments) {
	h.Helper()
	s := h.harness
	if number, err := strconv.Atoi(words[0]); err == nil {
		s, words = h.members[number-1], words[1:]
	}
	do, exists := steps[words[0]]
	require.True(h, exists, "unknown step: %s", words)
	do(h, s, words[1:])
}

func (h *history) print(form string, values ...any) {
	text := fmt.Sprintf(form+"\n", values...)
	text = strings.NewReplacer(clusterID, "ours", h.options.SpoolDir, "SPOOL").Replace(text)
	h.results.WriteString(varying.ReplaceAllString(text, "*"))
}

// varying matches the text that differs between runs and is printed as "*": durations, positions and the names of full
// snapshots.
var varying = regexp.MustCompile(`\b\d+(\.\d+)?m?s\b|\d{19}\.\d{9}|\d{19}-\d{8}T\d{6}Z`)

// printError prints err with a label unless err is nil.
func (h *history) printError(label string, err error) {
	if err != nil {
		h.print("%s: %s", label, err)
	}
}

// arguments are the words of a step.
type arguments []string

// word returns the i-th word, or "" if it is missing.
func (a arguments) word(i int) string {
	if i < len(a) {
		return a[i]
	}
	return ""
}

// number returns the i-th word as a number, or 0 if it is missing.
func (a arguments) number(i int) int {
	number, _ := strconv.Atoi(a.word(i))
	return number
}

// duration returns the i-th word as a duration, or 0 if it is missing.
func (a arguments) duration(i int) time.Duration {
	duration, _ := time.ParseDuration(a.word(i))
	return duration
}

// text returns all words, separated by spaces.
func (a arguments) text() string { return strings.Join(a, " ") }

// paces maps the names used by the step "pace" to fields of the writer's timing.
var paces = map[string]func(*timing) *time.Duration{
	"ahead":        func(p *timing) *time.Duration { return &p.ahead },
	"check":        func(p *timing) *time.Duration { return &p.check },
	"full-timeout": func(p *timing) *time.Duration { return &p.fullTimeout },
	"head-valid":   func(p *timing) *time.Duration { return &p.headValid },
	"heartbeat":    func(p *timing) *time.Duration { return &p.heartbeat },
	"successor":    func(p *timing) *time.Duration { return &p.successor },
	"verify-owner": func(p *timing) *time.Duration { return &p.verifyOwner },
	"watch":        func(p *timing) *time.Duration { return &p.watch },
}

// faults maps the names used by the step "fail" to faults of the store.
var faults = map[string]memory.Fault{
	"denied":      {Err: memory.ErrDenied},
	"error":       {Err: memory.ErrServerError},
	"expired":     {Err: memory.ErrExpired},
	"hangs":       {Hang: true},
	"late":        {Op: memory.List},
	"long-pause":  {Err: &store.Unavailable{Cause: errors.New("HTTP status 503"), After: time.Hour}},
	"lost-reply":  {Err: memory.ErrLostReply, ReplyLost: true},
	"no-bucket":   {Err: memory.ErrNoBucket},
	"no-folder":   {Err: fmt.Errorf("%w: %w", store.ErrNoBucket, fs.ErrNotExist)}, // must not be mistaken for a missing spool file
	"read-only":   {Err: memory.ErrDenied, Op: memory.Put},
	"skewed":      {Err: memory.ErrSkewed},
	"throttled":   {Err: memory.ErrThrottled},
	"unreachable": {Err: memory.ErrUnreachable},
}

// awaited maps the conditions of the steps "await" and "put-until" to their implementations.
var awaited = map[string]func(s *harness, f Facts, a arguments) bool{
	"chain":          func(s *harness, _ Facts, _ arguments) bool { return s.chainHas(s.etcd.Revision()) },
	"fulls":          func(_ *harness, f Facts, a arguments) bool { return f.Fulls == int64(a.number(0)) },
	"healthy":        func(_ *harness, f Facts, _ arguments) bool { return f.BrokenSince.IsZero() && f.Problem == nil },
	"knows":          func(_ *harness, f Facts, a arguments) bool { return f.Revision >= int64(a.number(0)) },
	"lag":            func(_ *harness, f Facts, a arguments) bool { return f.LagRevisions >= int64(a.number(0)) },
	"log":            func(s *harness, _ Facts, a arguments) bool { return strings.Contains(s.log.String(), a.text()) },
	"making":         func(_ *harness, f Facts, a arguments) bool { return fullIsAt(a.text())(f) },
	"no-failures":    func(_ *harness, f Facts, _ arguments) bool { return f.Failures == 0 },
	"no-full":        func(_ *harness, f Facts, _ arguments) bool { return f.RunningFullSnapshot == nil },
	"no-transaction": func(s *harness, _ Facts, _ arguments) bool { return s.chain.reader.Open() == 0 },
	"not-closed":     func(s *harness, _ Facts, _ arguments) bool { return len(s.superseded) == 0 },
	"problem": func(_ *harness, f Facts, a arguments) bool {
		return f.Problem != nil && strings.Contains(f.Problem.Message, a.text())
	},
	"queued": func(s *harness, _ Facts, a arguments) bool { return s.queuedSegments() >= max(1, a.number(0)) },
	"retry": func(_ *harness, f Facts, _ arguments) bool {
		return f.Problem != nil && !f.Problem.NextRetry.IsZero()
	},
	"role":          func(_ *harness, f Facts, a arguments) bool { return f.Role == facts.Role(a.word(0)) },
	"segments":      func(_ *harness, f Facts, a arguments) bool { return f.Segments >= int64(a.number(0)) },
	"stored":        func(s *harness, f Facts, _ arguments) bool { return f.Revision >= s.etcd.Revision() },
	"uploading":     func(s *harness, _ Facts, _ arguments) bool { return s.delay.inside.Load() == 1 },
	"wrote-nothing": func(_ *harness, f Facts, _ arguments) bool { return f.Segments == 0 && f.Fulls == 0 },
}

// steps maps the names of steps to their implementations. The comments divide them by what they change.
var steps = map[string]func(h *history, s *harness, a arguments){
	// Steps that change etcd.
	"put":  func(h *history, s *harness, a arguments) { h.put(s, a) },
	"user": func(_ *history, s *harness, a arguments) { s.addUser(a.word(0)) },
	"lease": func(h *history, s *harness, _ arguments) {
		_, err := s.etcd.Client.Grant(h.Context(), 3600)
		require.NoError(h, err)
	},
	"delete-user": func(h *history, s *harness, a arguments) {
		_, err := s.etcd.Client.UserDelete(h.Context(), a.word(0))
		require.NoError(h, err)
	},
	"compact": func(h *history, s *harness, _ arguments) {
		h.compacted = s.etcd.Revision()
		s.compact(h.compacted)
	},
	"defragment": func(h *history, s *harness, _ arguments) { require.NoError(h, s.etcd.Server.Backend().Defrag()) },
	"leader":     func(h *history, _ *harness, a arguments) { h.leader.Store(int32(a.number(0))) },
	"close-etcd": func(_ *history, s *harness, _ arguments) {
		s.options.Etcd, s.options.Release = s.openCopy(Server(s.etcd.Server).Identity()), true
	},
	"open-etcd": func(_ *history, s *harness, _ arguments) {
		s.options.Etcd, s.options.Release = Server(s.etcd.Server), false
	},
	// Steps that change or call the writer.
	"pace": func(_ *history, s *harness, a arguments) {
		s.tune = append(s.tune, func(w *Writer) { *paces[a[0]](&w.pace) = a.duration(1) })
	},
	"interval": func(_ *history, s *harness, a arguments) {
		s.do(func() { s.Writer.options.Interval = a.duration(0) })
	},
	"start":    func(_ *history, s *harness, _ arguments) { s.run() },
	"previous": func(_ *history, s *harness, _ arguments) { s.options.Previous = s.Writer },
	"stop":     func(_ *history, s *harness, _ arguments) { s.stop() },
	"capture":  func(h *history, s *harness, _ arguments) { s.BeforeCompaction(h.Context()) },
	"check":    func(_ *history, s *harness, _ arguments) { s.check() },
	"checkpoint": func(_ *history, s *harness, _ arguments) {
		s.do(func() { s.remote.checkpoint = s.remote.lastStored() })
	},
	"inspect": func(_ *history, s *harness, _ arguments) { s.do(func() { s.take(expired, payload{}) }) },
	"flush":   func(h *history, s *harness, a arguments) { h.printError("flush", s.flushWithin(a.duration(0))) },
	"full":    func(h *history, s *harness, _ arguments) { h.printError("full", receive(h, s.requestFull())) },
	"ask": func(h *history, s *harness, a arguments) {
		flushed := make(chan error, 1)
		if a[0] == "full" {
			h.pending = append(h.pending, s.requestFull())
			return
		}
		go func() { flushed <- s.Flush(h.Context()) }()
		h.pending = append(h.pending, flushed)
	},
	"answer": func(h *history, _ *harness, _ arguments) {
		h.printError("answer", receive(h, h.pending[0]))
		h.pending = h.pending[1:]
	},
	"answered": func(h *history, _ *harness, a arguments) {
		require.Eventually(h, func() bool { return len(h.pending[a.number(0)]) > 0 }, patience, poll)
	},
	"no-answer": func(h *history, s *harness, _ arguments) { s.requireWaits(h.pending[0]) },
	"ack":       func(_ *history, s *harness, _ arguments) { s.options.Ack, s.options.Interval = ack.NewGate(), 0 },
	"reply": func(h *history, s *harness, _ arguments) {
		h.pending = append(h.pending, s.startAckWait(s.etcd.Revision()))
	},
	"reply-all": func(h *history, s *harness, _ arguments) {
		h.pending = append(h.pending, s.startWait(s.options.Ack.WaitAll))
	},
	"gate": func(h *history, s *harness, _ arguments) { h.print("the gate is open: %t", s.options.Ack.IsOpen()) },
	"past-etcd": func(h *history, s *harness, a arguments) {
		h.past = s.lagging()
		if a[0] == "paused" {
			h.past = s.paused()
		}
	},
	"use-past-etcd": func(h *history, s *harness, _ arguments) {
		s.options.Etcd, s.options.SpoolDir = h.past, filepath.Join(h.TempDir(), "spool")
	},
	"pause": func(_ *history, s *harness, a arguments) {
		s.delay.substr = cmp.Or(a.word(1), "/segment/")
		s.resume = s.delay.pause(a.word(0) == "after")
	},
	"resume": func(_ *history, s *harness, _ arguments) { s.resume() },
	// Steps that change the volume.
	"identity":    func(_ *history, s *harness, a arguments) { s.setIdentity(clusterID, a.number(0)) },
	"spool-limit": func(_ *history, s *harness, a arguments) { s.options.SpoolLimit = int64(a.number(0)) },
	"volume":      func(h *history, _ *harness, a arguments) { h.volume.Store(a.word(0)) },
	"read-only-spool": func(h *history, s *harness, _ arguments) {
		require.NoError(h, os.RemoveAll(filepath.Join(s.options.SpoolDir, "making")))
	},
	"writable-spool": func(h *history, s *harness, _ arguments) {
		require.NoError(h, os.Mkdir(filepath.Join(s.options.SpoolDir, "making"), 0o700))
	},
	"damage-spool": func(h *history, s *harness, _ arguments) {
		queued := segmentsIn(h.T, s.options.SpoolDir)
		path := filepath.Join(s.options.SpoolDir, "segments", queued[len(queued)-1])
		content, err := os.ReadFile(path)
		require.NoError(h, err)
		content[len(content)-5] ^= 1
		require.NoError(h, os.WriteFile(path, content, 0o600))
	},
	"twin":        func(h *history, s *harness, a arguments) { h.harness = s.twin(cmp.Or(a.word(0), clusterID)) },
	"unname-data": func(_ *history, s *harness, _ arguments) { s.setIdentity("", 0) },
	// Steps that change the store.
	"fail": (*history).fail,
	"hold": func(h *history, s *harness, a arguments) {
		h.uploading, h.release = s.hold(cmp.Or(a.word(0), segments))
	},
	"held":    func(h *history, _ *harness, _ arguments) { receive(h, h.uploading) },
	"release": func(h *history, _ *harness, _ arguments) { h.release() },
	"heal":    func(h *history, _ *harness, _ arguments) { h.store.ClearFaults() },
	"damage":  func(_ *history, s *harness, a arguments) { s.damage(s.named(a.word(0))) },
	"write":   func(_ *history, s *harness, a arguments) { s.store.SetContent(s.named(a.word(0)), make([]byte, 100)) },
	"write-ahead": func(_ *history, s *harness, a arguments) {
		for i := range int64(a.number(0)) {
			s.store.SetContent(archive.SegmentName(1, format.After(s.etcd.Revision()+10+i)), []byte("x"))
		}
	},
	"delete": func(h *history, s *harness, a arguments) {
		names := slices.DeleteFunc(s.names(), func(name string) bool { return !strings.HasPrefix(name, a.word(0)) })
		require.NotEmpty(h, names)
		if a.word(1) == "but-last" {
			names = names[:len(names)-1]
		}
		for _, name := range names {
			require.NoError(h, s.store.Delete(h.Context(), name))
		}
	},
	"signed": func(h *history, s *harness, _ arguments) {
		if h.keys == nil {
			made := formattest.NewKeys(h.T)
			h.keys = formattest.LoadKeys(h.T, format.KeyFiles{SigningKey: made.SigningKey, TrustedKeys: made.TrustedKeys})
		}
		s.useKeys(h.keys)
	},
	"unsigned": func(_ *history, s *harness, _ arguments) { s.useKeys(keys) },
	"next-segment": func(h *history, s *harness, a arguments) {
		start, by := s.head().Start, cmp.Or(h.keys, keys)
		if start.Cluster = a.word(0); a.word(0) == "unsigned" {
			start.Cluster, by = clusterID, keys
		}
		s.putSegment(segment(h.T, by, start, format.Source{Member: "1"}))
	},
	"merge": func(_ *history, s *harness, _ arguments) { s.mergeAll() },
	"new-store": func(h *history, s *harness, _ arguments) {
		h.stores = append(h.stores, s.store)
		s.store = memory.New()
	},
	"old-store":      func(h *history, s *harness, _ arguments) { s.store = h.stores[0] },
	"found":          func(_ *history, s *harness, _ arguments) { s.createCluster(s.store, clusterID) },
	"found-by":       func(_ *history, s *harness, a arguments) { s.replaceStore(a.word(0)) },
	"end-generation": func(_ *history, s *harness, _ arguments) { s.endGeneration() },
	"restore":        func(_ *history, s *harness, _ arguments) { s.startGeneration() },
	"stray-generation": func(h *history, s *harness, _ arguments) {
		next := archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 2, Created: time.Now()}
		require.NoError(h, s.backups().BeginGeneration(h.Context(), next))
	},
	"other-rows": func(_ *history, s *harness, a arguments) {
		own := s.current()
		rows := own[len(own)-a.number(0):]
		if a.word(1) != "" {
			rows[0].Key[7] += byte(a.number(1))
			rows[0].Value = []byte(a.word(2))
		}
		s.storeAsOther(rows...)
	},
	// Steps that wait for a condition, check the results or print them.
	"await": func(_ *history, s *harness, a arguments) {
		s.Helper()
		holds, exists := awaited[a[0]]
		require.True(s, exists, "unknown condition: %s", a)
		require.Eventually(s, func() bool { return holds(s, s.known(), a[1:]) }, patience, poll, a.text())
	},
	"put-until": func(h *history, s *harness, a arguments) {
		require.Eventually(s, func() bool {
			h.put(s, nil)
			return awaited[a[0]](s, s.known(), a[1:])
		}, patience, poll, a.text())
	},
	"closed": func(h *history, s *harness, _ arguments) {
		h.printError("etcd is closed", receive(h, s.superseded))
	},
	"untouched": func(_ *history, s *harness, _ arguments) { s.requireRefused("") },
	"refused": func(h *history, s *harness, _ arguments) {
		s.requireRefused("")
		h.printState(s)
	},
	"mark":      func(h *history, s *harness, _ arguments) { h.marked = s.contents() },
	"unchanged": func(h *history, s *harness, _ arguments) { s.requireUnchanged(h.marked) },
	"state":     func(h *history, s *harness, _ arguments) { h.printState(s) },
	"reason":    func(h *history, s *harness, _ arguments) { h.print("full snapshot: %s", s.Facts().LastFull.Reason) },
	"log": func(h *history, s *harness, a arguments) {
		h.print("logged %d times: %s", strings.Count(s.log.String(), a.text()), a.text())
	},
	"head": func(h *history, s *harness, _ arguments) {
		head := s.head()
		h.print("the backups end at revision %d; ended: %t, released: %t, unlinked full snapshot: %t",
			head.Revision(), head.Ending() != nil, head.Newest().Released, head.Unlinked != nil)
	},
	"exists": func(h *history, s *harness, a arguments) { assert.Contains(h, s.names(), a.word(0)) },
	"full-snapshots": func(h *history, s *harness, _ arguments) {
		history, copies := s.history(), strings.Count(s.log.String(), "copied the database")
		h.print("full snapshots: %d, copies of the database: %d, incomplete uploads: %d", len(history.Fulls), copies, len(history.Orphans))
	},
	"copies": func(h *history, s *harness, _ arguments) {
		copies, err := filepath.Glob(filepath.Join(s.options.SpoolDir, "making", "*"))
		require.NoError(h, err)
		h.print("copies on the volume: %d", len(copies))
	},
	"reopen": func(h *history, s *harness, _ arguments) {
		queued := segmentsIn(h.T, s.options.SpoolDir)
		_, err := s.make()
		require.NoError(h, err)
		h.print("still queued: %t", slices.Equal(queued, segmentsIn(h.T, s.options.SpoolDir)))
		for _, kept := range disk.PreservedCopies(s.options.SpoolDir) {
			h.print("preserved: %t", slices.Equal(queued, segmentsIn(h.T, kept.Path)))
		}
	},
	"chains":        func(h *history, s *harness, _ arguments) { h.print("chains: %d", len(s.history().Chains)) },
	"nothing-loose": func(_ *history, s *harness, _ arguments) { s.requireNoLooseSegments() },
	"nothing-new":   func(h *history, s *harness, _ arguments) { assert.Len(h, s.names(), len(h.marked)) },
	"count-uploads": func(h *history, s *harness, _ arguments) {
		before := h.uploads
		h.uploads = s.store.CountCalls(memory.Put, segments)
		if before > 0 {
			h.print("segments: %d", h.uploads-before)
		}
	},
	"entries": func(_ *history, s *harness, a arguments) { s.requireEntries(a.word(0), a.number(1)) },
	"compacted": func(h *history, s *harness, _ arguments) {
		_, reading, _ := restoreTarget(h.T, s.store, archive.Target{})
		h.print("restored compaction revision: %d", reading.Compacted)
	},
	"revision": (*history).restoreRevision,
	"contents": (*history).printContents,
}

// put handles the step "put COUNT KEY VALUE". COUNT defaults to 1. By default, the keys are key0, key1 and so on, and
// each put of the history has a different value.
func (h *history) put(s *harness, a arguments) {
	count := 1
	if len(a) > 0 {
		count = a.number(0)
	}
	for i := range count {
		h.puts++
		s.put(cmp.Or(a.word(1), fmt.Sprint("key", i)), cmp.Or(a.word(2), strconv.Itoa(h.puts)))
	}
}

// receive returns the next value from a channel, and fails the test if it does not arrive in time.
func receive[T any](h *history, from <-chan T) (value T) {
	h.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		require.FailNow(h, "timed out waiting for a result")
	}
	return value
}

// fail handles the step "fail FAULT OPERATION PREFIX TIMES AFTER". Of the requests with this operation ("any" for all)
// and name prefix, the first AFTER are not affected, and the next TIMES fail. If TIMES is 0 or missing, all later
// requests fail.
func (h *history) fail(_ *harness, a arguments) {
	fault, exists := faults[a[0]]
	require.True(h, exists, "unknown fault: %s", a)
	fault.Op = cmp.Or(memory.Op(strings.Replace(a.word(1), "any", "", 1)), fault.Op)
	fault.Prefix, fault.Times, fault.After = a.word(2), a.number(3), a.number(4)
	if a[0] == "late" {
		fault.Prefix, fault.Hides = "", regexp.MustCompile(a.word(2)).MatchString
	}
	h.store.Inject(fault)
}

// named returns the name of the object that a history refers to as last-segment, next-segment or newest-full. Other
// names are returned unchanged.
func (s *harness) named(name string) string {
	switch name {
	case "last-segment":
		return archive.SegmentName(1, s.head().Segment.Position)
	case "next-segment":
		return archive.SegmentName(1, s.head().Position)
	case "newest-full":
		return archive.ManifestName(1, s.head().Full.Name())
	}
	return name
}

// known returns the facts of the harness's writer, or the zero value if the harness has none.
func (s *harness) known() (known Facts) {
	if s.Writer != nil {
		known = s.Facts()
	}
	return known
}

func (s *harness) flushWithin(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(s.Context(), cmp.Or(limit, patience))
	defer cancel()
	return s.Flush(ctx)
}

func (h *history) printState(s *harness) {
	f := s.Facts()
	h.print("%s of generation %d, %d full snapshots; revision %d is stored, %d revisions are not",
		f.Role, f.Generation, f.Fulls, f.Revision, f.LagRevisions)
	if f.Problem != nil {
		h.printError("problem", errors.New(f.Problem.Message))
	}
}

// restoreRevision requires that a revision can be restored. A negative revision is relative to etcd's current
// revision.
func (h *history) restoreRevision(s *harness, a arguments) {
	revision := int64(a.number(0))
	if revision < 0 {
		revision += s.etcd.Revision()
	}
	_, _, path := restoreTarget(h.T, s.store, archive.Target{Revision: revision})
	assert.Equal(h, revision, path.Revision)
}

// printContents restores the latest revision, requires that the result equals etcd's rows except for rows that etcd
// has compacted, and prints a summary of the generation.
func (h *history) printContents(s *harness, _ arguments) {
	found, _, path := restoreTarget(h.T, s.store, archive.Target{})
	own := s.current()
	all, err := archive.New(s.store, cmp.Or(h.keys, keys)).History(h.Context())
	require.NoError(h, err)
	history := all.Newest()
	require.NoError(h, history.Chains[len(history.Chains)-1].PastEnd)
	etcdtest.RequireSameRows(h.T, own, slices.DeleteFunc(found, func(row format.Row) bool {
		revision, err := row.Revision()
		isLeft := slices.ContainsFunc(own, func(o format.Row) bool { return bytes.Equal(o.Key, row.Key) })
		return err == nil && revision <= h.compacted && !isLeft
	}))
	assert.Equal(h, s.etcd.Revision(), path.Revision)
	h.print("generation %d: chains: %d, last full snapshot: %s", history.Number, len(history.Chains), path.Full.Reason)
	if len(h.members) > 0 {
		h.print("  by member %s", path.Full.Member)
	}
}
