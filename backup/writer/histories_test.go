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

// TestHistories replays the histories in testdata/histories/writer. Each history consists of events of etcd, the
// store and the writers, and the results. The README in that directory describes the steps. -rewrite updates the
// results.
func TestHistories(t *testing.T) {
	datadriven.Walk(t, "../../testdata/histories/writer", func(t *testing.T, file string) {
		t.Parallel()
		datadriven.RunTest(t, file, runHistory)
	})
}

// runHistory replays a history for each value of its variable and returns the results. Equal results are listed only
// once.
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

// A history consists of an etcd server, a store, the writers, and the results so far.
type history struct {
	*cluster  // members of a multi-member cluster; nil if stand's writer is the only one
	results   strings.Builder
	puts      int
	compacted int64          // revision of etcd's last compaction
	asked     []<-chan error // results of pending requests
	volume    atomic.Value   // "free", "segments-only" or "full"
	marked    map[string][]byte
	uploads   int             // number of uploads at the last count
	uploading <-chan struct{} // receives a value for each blocked upload
	release   func()          // unblocks these uploads
	past      Etcd            // saved state of etcd
	keys      *format.Keys    // keys that sign the backups; nil for unsigned backups
	stores    []*memory.Store // stores that have been replaced
}

var beginnings = map[string]int{"new": 0, "chain": 0, "member": 1, "two": 2, "three": 3}

func newHistory(t *testing.T, kind string) *history {
	t.Helper()
	h := &history{cluster: &cluster{stand: standIn(t)}}
	size, is := beginnings[kind]
	require.True(t, is, "no such beginning: %s", kind)
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

// room returns an error if the simulated volume has no room for size bytes.
func (h *history) room(size int64) error {
	const database = 16 << 10 // larger than any segment
	if is := h.volume.Load(); is == "full" || is == "segments-only" && size != maxSegment && size >= database {
		return ErrSpoolFull
	}
	return nil
}

// step executes one line. In a multi-member cluster, the line starts with the number of a member.
func (h *history) step(words arguments) {
	h.Helper()
	s := h.stand
	if number, err := strconv.Atoi(words[0]); err == nil {
		s, words = h.members[number-1], words[1:]
	}
	do, is := steps[words[0]]
	require.True(h, is, "no such step: %s", words)
	do(h, s, words[1:])
}

func (h *history) print(form string, values ...any) {
	text := fmt.Sprintf(form+"\n", values...)
	text = strings.NewReplacer(clusterID, "ours", h.options.SpoolDir, "SPOOL").Replace(text)
	h.results.WriteString(varying.ReplaceAllString(text, "*"))
}

// varying matches text that differs between runs: durations, positions and names of full snapshots.
var varying = regexp.MustCompile(`\b\d+(\.\d+)?m?s\b|\d{19}\.\d{9}|\d{19}-\d{8}T\d{6}Z`)

// printError prints err unless it is nil.
func (h *history) printError(doing string, err error) {
	if err != nil {
		h.print("%s: %s", doing, err)
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

// text returns all words.
func (a arguments) text() string { return strings.Join(a, " ") }

var paces = map[string]func(*timing) *time.Duration{
	"ahead":         func(p *timing) *time.Duration { return &p.ahead },
	"check":         func(p *timing) *time.Duration { return &p.check },
	"full-patience": func(p *timing) *time.Duration { return &p.fullPatience },
	"head-valid":    func(p *timing) *time.Duration { return &p.headValid },
	"heartbeat":     func(p *timing) *time.Duration { return &p.heartbeat },
	"successor":     func(p *timing) *time.Duration { return &p.successor },
	"verify-owner":  func(p *timing) *time.Duration { return &p.verifyOwner },
	"watch":         func(p *timing) *time.Duration { return &p.watch },
}

var faults = map[string]memory.Fault{
	"denied":      {Err: memory.ErrDenied},
	"error":       {Err: memory.ErrServerError},
	"expired":     {Err: memory.ErrExpired},
	"hangs":       {Hang: true},
	"late":        {Op: memory.List},
	"long-pause":  {Err: &store.Unavailable{Cause: errors.New("HTTP status 503"), After: time.Hour}},
	"lost-reply":  {Err: memory.ErrLostReply, ReplyLost: true},
	"no-bucket":   {Err: memory.ErrNoBucket},
	"no-folder":   {Err: fmt.Errorf("%w: %w", store.ErrNoBucket, fs.ErrNotExist)}, // the queued data still exists
	"read-only":   {Err: memory.ErrDenied, Op: memory.Put},
	"skewed":      {Err: memory.ErrSkewed},
	"throttled":   {Err: memory.ErrThrottled},
	"unreachable": {Err: memory.ErrUnreachable},
}

// awaited maps condition names to their implementations.
var awaited = map[string]func(s *stand, f Facts, a arguments) bool{
	"chain":          func(s *stand, _ Facts, _ arguments) bool { return s.chainHas(s.etcd.Revision()) },
	"fulls":          func(_ *stand, f Facts, a arguments) bool { return f.Fulls == int64(a.number(0)) },
	"healthy":        func(_ *stand, f Facts, _ arguments) bool { return f.BrokenSince.IsZero() && f.Problem == nil },
	"knows":          func(_ *stand, f Facts, a arguments) bool { return f.Revision >= int64(a.number(0)) },
	"lag":            func(_ *stand, f Facts, a arguments) bool { return f.LagRevisions >= int64(a.number(0)) },
	"log":            func(s *stand, _ Facts, a arguments) bool { return strings.Contains(s.log.String(), a.text()) },
	"making":         func(_ *stand, f Facts, a arguments) bool { return does(a.text())(f) },
	"no-failures":    func(_ *stand, f Facts, _ arguments) bool { return f.Failures == 0 },
	"no-full":        func(_ *stand, f Facts, _ arguments) bool { return f.RunningFullSnapshot == nil },
	"no-transaction": func(s *stand, _ Facts, _ arguments) bool { return s.chain.reader.Open() == 0 },
	"not-closed":     func(s *stand, _ Facts, _ arguments) bool { return len(s.superseded) == 0 },
	"problem": func(_ *stand, f Facts, a arguments) bool {
		return f.Problem != nil && strings.Contains(f.Problem.Message, a.text())
	},
	"queued": func(s *stand, _ Facts, a arguments) bool { return s.waits() >= max(1, a.number(0)) },
	"retry": func(_ *stand, f Facts, _ arguments) bool {
		return f.Problem != nil && !f.Problem.NextRetry.IsZero()
	},
	"role":          func(_ *stand, f Facts, a arguments) bool { return f.Role == facts.Role(a.word(0)) },
	"segments":      func(_ *stand, f Facts, a arguments) bool { return f.Segments >= int64(a.number(0)) },
	"stored":        func(s *stand, f Facts, _ arguments) bool { return f.Revision >= s.etcd.Revision() },
	"uploading":     func(s *stand, _ Facts, _ arguments) bool { return s.delay.inside.Load() == 1 },
	"wrote-nothing": func(_ *stand, f Facts, _ arguments) bool { return f.Segments == 0 && f.Fulls == 0 },
}

var steps = map[string]func(h *history, s *stand, a arguments){
	// etcd.
	"put":  func(h *history, s *stand, a arguments) { h.put(s, a) },
	"user": func(_ *history, s *stand, a arguments) { s.addUser(a.word(0)) },
	"lease": func(h *history, s *stand, _ arguments) {
		_, err := s.etcd.Client.Grant(h.Context(), 3600)
		require.NoError(h, err)
	},
	"delete-user": func(h *history, s *stand, a arguments) {
		_, err := s.etcd.Client.UserDelete(h.Context(), a.word(0))
		require.NoError(h, err)
	},
	"compact": func(h *history, s *stand, _ arguments) {
		h.compacted = s.etcd.Revision()
		s.compact(h.compacted)
	},
	"defragment": func(h *history, s *stand, _ arguments) { require.NoError(h, s.etcd.Server.Backend().Defrag()) },
	"leader":     func(h *history, _ *stand, a arguments) { h.leader.Store(int32(a.number(0))) },
	"close-etcd": func(_ *history, s *stand, _ arguments) {
		s.options.Etcd, s.options.Release = s.frozen(Server(s.etcd.Server).Identity()), true
	},
	"open-etcd": func(_ *history, s *stand, _ arguments) {
		s.options.Etcd, s.options.Release = Server(s.etcd.Server), false
	},
	// The writer.
	"pace": func(_ *history, s *stand, a arguments) {
		s.tune = append(s.tune, func(w *Writer) { *paces[a[0]](&w.pace) = a.duration(1) })
	},
	"interval": func(_ *history, s *stand, a arguments) {
		s.do(func() { s.Writer.options.Interval = a.duration(0) })
	},
	"start":      func(_ *history, s *stand, _ arguments) { s.run() },
	"previous":   func(_ *history, s *stand, _ arguments) { s.options.Previous = s.Writer },
	"stop":       func(_ *history, s *stand, _ arguments) { s.end() },
	"capture":    func(h *history, s *stand, _ arguments) { s.BeforeCompaction(h.Context()) },
	"check":      func(_ *history, s *stand, _ arguments) { s.check() },
	"checkpoint": func(_ *history, s *stand, _ arguments) { s.do(func() { s.remote.checkpoint = s.remote.lastStored() }) },
	"inspect":    func(_ *history, s *stand, _ arguments) { s.do(func() { s.take(expired, payload{}) }) },
	"flush":      func(h *history, s *stand, a arguments) { h.printError("flush", s.flushWithin(a.duration(0))) },
	"full":       func(h *history, s *stand, _ arguments) { h.printError("full", receive(h, s.asked())) },
	"ask": func(h *history, s *stand, a arguments) {
		flushed := make(chan error, 1)
		if a[0] == "full" {
			h.asked = append(h.asked, s.asked())
			return
		}
		go func() { flushed <- s.Flush(h.Context()) }()
		h.asked = append(h.asked, flushed)
	},
	"answer": func(h *history, _ *stand, _ arguments) {
		h.printError("answer", receive(h, h.asked[0]))
		h.asked = h.asked[1:]
	},
	"answered": func(h *history, _ *stand, a arguments) {
		require.Eventually(h, func() bool { return len(h.asked[a.number(0)]) > 0 }, patience, poll)
	},
	"no-answer": func(h *history, s *stand, _ arguments) { s.requireWaits(h.asked[0]) },
	"ack":       func(_ *history, s *stand, _ arguments) { s.options.Ack, s.options.Interval = ack.NewGate(), 0 },
	"reply":     func(h *history, s *stand, _ arguments) { h.asked = append(h.asked, s.stored(s.etcd.Revision())) },
	"reply-all": func(h *history, s *stand, _ arguments) { h.asked = append(h.asked, s.waiting(s.options.Ack.WaitAll)) },
	"gate":      func(h *history, s *stand, _ arguments) { h.print("the gate is open: %t", s.options.Ack.IsOpen()) },
	"past-etcd": func(h *history, s *stand, a arguments) {
		h.past = s.lagging()
		if a[0] == "paused" {
			h.past = s.paused()
		}
	},
	"use-past-etcd": func(h *history, s *stand, _ arguments) {
		s.options.Etcd, s.options.SpoolDir = h.past, filepath.Join(h.TempDir(), "spool")
	},
	"pause": func(_ *history, s *stand, a arguments) {
		s.delay.of = cmp.Or(a.word(1), "/segment/")
		s.resume = s.delay.pause(a.word(0) == "after")
	},
	"resume": func(_ *history, s *stand, _ arguments) { s.resume() },
	// The volume.
	"identity":    func(_ *history, s *stand, a arguments) { s.is(clusterID, a.number(0)) },
	"spool-limit": func(_ *history, s *stand, a arguments) { s.options.SpoolLimit = int64(a.number(0)) },
	"volume":      func(h *history, _ *stand, a arguments) { h.volume.Store(a.word(0)) },
	"read-only-spool": func(h *history, s *stand, _ arguments) {
		require.NoError(h, os.RemoveAll(filepath.Join(s.options.SpoolDir, "making")))
	},
	"writable-spool": func(h *history, s *stand, _ arguments) {
		require.NoError(h, os.Mkdir(filepath.Join(s.options.SpoolDir, "making"), 0o700))
	},
	"damage-spool": func(h *history, s *stand, _ arguments) {
		queued := segmentsIn(h.T, s.options.SpoolDir)
		path := filepath.Join(s.options.SpoolDir, "segments", queued[len(queued)-1])
		content, err := os.ReadFile(path)
		require.NoError(h, err)
		content[len(content)-5] ^= 1
		require.NoError(h, os.WriteFile(path, content, 0o600))
	},
	"twin":        func(h *history, s *stand, a arguments) { h.stand = s.twin(cmp.Or(a.word(0), clusterID)) },
	"unname-data": func(_ *history, s *stand, _ arguments) { s.is("", 0) },
	// The store.
	"fail":    (*history).fail,
	"hold":    func(h *history, s *stand, a arguments) { h.uploading, h.release = s.hold(cmp.Or(a.word(0), segments)) },
	"held":    func(h *history, _ *stand, _ arguments) { receive(h, h.uploading) },
	"release": func(h *history, _ *stand, _ arguments) { h.release() },
	"heal":    func(h *history, _ *stand, _ arguments) { h.store.ClearFaults() },
	"damage":  func(_ *history, s *stand, a arguments) { s.damage(s.named(a.word(0))) },
	"write":   func(_ *history, s *stand, a arguments) { s.store.SetContent(s.named(a.word(0)), make([]byte, 100)) },
	"write-ahead": func(_ *history, s *stand, a arguments) {
		for i := range int64(a.number(0)) {
			s.store.SetContent(archive.SegmentName(1, format.After(s.etcd.Revision()+10+i)), []byte("x"))
		}
	},
	"delete": func(h *history, s *stand, a arguments) {
		names := slices.DeleteFunc(s.names(), func(name string) bool { return !strings.HasPrefix(name, a.word(0)) })
		require.NotEmpty(h, names)
		if a.word(1) == "but-last" {
			names = names[:len(names)-1]
		}
		for _, name := range names {
			require.NoError(h, s.store.Delete(h.Context(), name))
		}
	},
	"signed": func(h *history, s *stand, _ arguments) {
		if h.keys == nil {
			made := formattest.NewKeys(h.T)
			h.keys = formattest.LoadKeys(h.T, format.KeyFiles{SigningKey: made.SigningKey, TrustedKeys: made.TrustedKeys})
		}
		s.with(h.keys)
	},
	"unsigned": func(_ *history, s *stand, _ arguments) { s.with(keys) },
	"next-segment": func(h *history, s *stand, a arguments) {
		start, by := s.head().Start, cmp.Or(h.keys, keys)
		if start.Cluster = a.word(0); a.word(0) == "unsigned" {
			start.Cluster, by = clusterID, keys
		}
		s.lay(segment(h.T, by, start, format.Source{Member: "1"}))
	},
	"merge": func(_ *history, s *stand, _ arguments) { s.mergeAll() },
	"new-store": func(h *history, s *stand, _ arguments) {
		h.stores = append(h.stores, s.store)
		s.store = memory.New()
	},
	"old-store":      func(h *history, s *stand, _ arguments) { s.store = h.stores[0] },
	"found":          func(_ *history, s *stand, _ arguments) { s.founded(s.store, clusterID) },
	"found-by":       func(_ *history, s *stand, a arguments) { s.foundedBy(a.word(0)) },
	"end-generation": func(_ *history, s *stand, _ arguments) { s.succeed() },
	"restore":        func(_ *history, s *stand, _ arguments) { s.restored() },
	"stray-generation": func(h *history, s *stand, _ arguments) {
		next := archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 2, Created: time.Now()}
		require.NoError(h, s.backups().BeginGeneration(h.Context(), next))
	},
	"other-rows": func(_ *history, s *stand, a arguments) {
		own := s.current()
		rows := own[len(own)-a.number(0):]
		if a.word(1) != "" {
			rows[0].Key[7] += byte(a.number(1))
			rows[0].Value = []byte(a.word(2))
		}
		s.other(rows...)
	},
	// Output.
	"await": func(_ *history, s *stand, a arguments) {
		s.Helper()
		holds, is := awaited[a[0]]
		require.True(s, is, "no such condition: %s", a)
		require.Eventually(s, func() bool { return holds(s, s.known(), a[1:]) }, patience, poll, a.text())
	},
	"put-until": func(h *history, s *stand, a arguments) {
		require.Eventually(s, func() bool {
			h.put(s, nil)
			return awaited[a[0]](s, s.known(), a[1:])
		}, patience, poll, a.text())
	},
	"closed": func(h *history, s *stand, _ arguments) {
		h.printError("etcd is closed", receive(h, s.superseded))
	},
	"untouched": func(_ *history, s *stand, _ arguments) { s.requireUntouched("") },
	"refused": func(h *history, s *stand, _ arguments) {
		s.requireUntouched("")
		h.printState(s)
	},
	"mark":      func(h *history, s *stand, _ arguments) { h.marked = s.contents() },
	"unchanged": func(h *history, s *stand, _ arguments) { s.requireUnchanged(h.marked) },
	"state":     func(h *history, s *stand, _ arguments) { h.printState(s) },
	"reason":    func(h *history, s *stand, _ arguments) { h.print("full snapshot: %s", s.Facts().LastFull.Reason) },
	"log": func(h *history, s *stand, a arguments) {
		h.print("logged %d times: %s", strings.Count(s.log.String(), a.text()), a.text())
	},
	"head": func(h *history, s *stand, _ arguments) {
		head := s.head()
		h.print("the store ends at revision %d; ended: %t, released: %t, unlinked full snapshot: %t",
			head.Revision(), head.Ending() != nil, head.Newest().Released, head.Unlinked != nil)
	},
	"exists": func(h *history, s *stand, a arguments) { assert.Contains(h, s.names(), a.word(0)) },
	"full-snapshots": func(h *history, s *stand, _ arguments) {
		history, copies := s.history(), strings.Count(s.log.String(), "copied the database")
		h.print("%d full snapshots of %d copies, %d remains", len(history.Fulls), copies, len(history.Orphans))
	},
	"copies": func(h *history, s *stand, _ arguments) {
		copies, err := filepath.Glob(filepath.Join(s.options.SpoolDir, "making", "*"))
		require.NoError(h, err)
		h.print("copies on the volume: %d", len(copies))
	},
	"reopen": func(h *history, s *stand, _ arguments) {
		queued := segmentsIn(h.T, s.options.SpoolDir)
		_, err := s.make()
		require.NoError(h, err)
		h.print("still queued: %t", slices.Equal(queued, segmentsIn(h.T, s.options.SpoolDir)))
		for _, kept := range disk.PreservedCopies(s.options.SpoolDir) {
			h.print("preserved: %t", slices.Equal(queued, segmentsIn(h.T, kept.Path)))
		}
	},
	"chains":        func(h *history, s *stand, _ arguments) { h.print("chains: %d", len(s.history().Chains)) },
	"nothing-loose": func(_ *history, s *stand, _ arguments) { s.requireNothingLoose() },
	"nothing-new":   func(h *history, s *stand, _ arguments) { assert.Len(h, s.names(), len(h.marked)) },
	"count-uploads": func(h *history, s *stand, _ arguments) {
		before := h.uploads
		h.uploads = s.store.CountCalls(memory.Put, segments)
		if before > 0 {
			h.print("segments: %d", h.uploads-before)
		}
	},
	"entries": func(_ *history, s *stand, a arguments) { s.requireEntries(a.word(0), a.number(1)) },
	"compacted": func(h *history, s *stand, _ arguments) {
		_, reading, _ := kept(h.T, s.store, archive.Target{})
		h.print("restored as compacted at revision %d", reading.Compacted)
	},
	"revision": (*history).restoreRevision,
	"contents": (*history).printContents,
}

// put handles the step "put COUNT KEY VALUE". COUNT defaults to 1. Each put writes a different value.
func (h *history) put(s *stand, a arguments) {
	count := 1
	if len(a) > 0 {
		count = a.number(0)
	}
	for i := range count {
		h.puts++
		s.put(cmp.Or(a.word(1), fmt.Sprint("key", i)), cmp.Or(a.word(2), strconv.Itoa(h.puts)))
	}
}

// receive returns the next value from a channel, and fails the test if there is none in time.
func receive[T any](h *history, from <-chan T) (value T) {
	h.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		require.FailNow(h, "nothing is received")
	}
	return value
}

// fail makes requests fail. The arguments are the kind of fault, the operation or "any", a name prefix, the number of
// failures, and the number of requests before the first failure.
func (h *history) fail(_ *stand, a arguments) {
	fault, is := faults[a[0]]
	require.True(h, is, "no such fault: %s", a)
	fault.Op = cmp.Or(memory.Op(strings.Replace(a.word(1), "any", "", 1)), fault.Op)
	fault.Prefix, fault.Times, fault.After = a.word(2), a.number(3), a.number(4)
	if a[0] == "late" {
		fault.Prefix, fault.Hides = "", regexp.MustCompile(a.word(2)).MatchString
	}
	h.store.Inject(fault)
}

// named returns the name of the object that a history refers to by its location.
func (s *stand) named(name string) string {
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

// known returns the writer's facts, or the zero value for a multi-member cluster, which has more than one writer.
func (s *stand) known() (is Facts) {
	if s.Writer != nil {
		is = s.Facts()
	}
	return is
}

func (s *stand) flushWithin(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(s.Context(), cmp.Or(limit, patience))
	defer cancel()
	return s.Flush(ctx)
}

func (h *history) printState(s *stand) {
	f := s.Facts()
	h.print("%s of generation %d, %d full snapshots; revision %d is stored, %d revisions are not",
		f.Role, f.Generation, f.Fulls, f.Revision, f.LagRevisions)
	if f.Problem != nil {
		h.printError("problem", errors.New(f.Problem.Message))
	}
}

// restoreRevision restores a revision. A negative revision is relative to etcd's revision.
func (h *history) restoreRevision(s *stand, a arguments) {
	revision := int64(a.number(0))
	if revision < 0 {
		revision += s.etcd.Revision()
	}
	_, _, path := kept(h.T, s.store, archive.Target{Revision: revision})
	assert.Equal(h, revision, path.Revision)
}

// printContents restores the newest generation, requires all of etcd's rows up to the restored revision, and prints
// the objects of the generation. The restored rows may include rows that etcd has compacted.
func (h *history) printContents(s *stand, _ arguments) {
	found, _, path := kept(h.T, s.store, archive.Target{})
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
