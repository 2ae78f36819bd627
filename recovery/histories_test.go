package recovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery/peers"
)

// TestHistories runs the histories in testdata/histories/recovery. testdata/histories/README.md describes their steps.
// Each history consists of events on a volume, in its store and on the other members, followed by recovery's
// reaction. With -rewrite, TestHistories updates the reactions in the files.
func TestHistories(t *testing.T) {
	datadriven.Walk(t, "../testdata/histories/recovery", func(t *testing.T, file string) {
		t.Parallel()
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			h := newHistory(t, d.Cmd)
			for line := range strings.Lines(d.Input) {
				h.step(strings.Fields(line))
			}
			return h.normalized()
		})
	})
}

// A history is a fixture with the other members of its cluster, the steps that are still to be performed, and the
// results so far.
type history struct {
	*fixture
	peers          *fakePeers
	etcd           uint64 // etcd cluster ID that the peers have at the start
	results        strings.Builder
	scheduled      map[string][]arguments // steps to perform during pauses or before actions of the next run
	interruptAt    string                 // action before which the next run is interrupted
	maxPauses      int                    // number of pauses after which a run is canceled
	outcome        Result                 // result of the last run
	requestsBefore int                    // number of requests to the store before the last run
	otherMember    *history               // another member with the same store; nil until a step creates it
	keyFiles       map[string]formattest.Keys
}

func newHistory(t *testing.T, kind string) *history {
	t.Helper()
	h := &history{maxPauses: 12, scheduled: map[string][]arguments{}, keyFiles: map[string]formattest.Keys{}}
	switch kind {
	case "new":
		h.fixture = newFixture(t)
	case "filled":
		h.fixture = newFilledFixture(t)
	case "three":
		h.fixture, h.peers = memberOfThree(t)
	case "sole-voter":
		h.fixture, h.peers = soleVoter(t)
	default:
		t.Fatalf("no such volume: %s", kind)
	}
	h.setClock(0) // pauses must not take any time, even on a busy machine
	h.options.Ended = func(outcome Result) { h.outcome = outcome }
	if h.peers != nil {
		h.etcd = h.peers.cluster
	}
	return h
}

// arguments are the words of a step.
type arguments []string

// word returns the word at an index, or "" if there is none.
func (a arguments) word(i int) string {
	if i < len(a) {
		return a[i]
	}
	return ""
}

// number returns the word at an index as a number, or 0 if there is none.
func (a arguments) number(i int) int {
	number, _ := strconv.Atoi(a.word(i))
	return number
}

// identity parses the first word as CLUSTER/GENERATION/SESSION. The cluster "ours" is this cluster.
func (a arguments) identity() archive.Identity {
	parts := arguments(strings.Split(a.word(0), "/"))
	return archive.Identity{Cluster: strings.Replace(parts.word(0), "ours", ours, 1), Generation: parts.number(1), Session: parts.word(2)}
}

// generation returns the generation with the given number and restore ID.
func (a arguments) generation() archive.Generation {
	return archive.Generation{
		Number: a.number(0), Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: a.number(0) - 1, ParentRevision: 2,
		Restore: a.word(1), Created: at,
	}
}

func (h *history) step(words arguments) {
	h.t.Helper()
	do, known := steps[words[0]]
	require.True(h.t, known, "no such step: %s", words)
	do(h, words[1:])
}

var steps map[string]func(h *history, a arguments)

func init() { // in init, because steps refer to each other
	steps = map[string]func(h *history, a arguments){
		// The volume.
		"put":            func(h *history, a arguments) { h.put(a...) },
		"lose":           func(h *history, _ arguments) { h.lose() },
		"damage":         func(h *history, _ arguments) { h.damage() },
		"barely-started": func(h *history, _ arguments) { killAtFirstStart(h.fixture) },
		"copy":           func(h *history, _ arguments) { h.copyVolume() },
		"roll-back":      func(h *history, _ arguments) { h.rollBack() },
		"plain-data":     func(h *history, _ arguments) { h.replaceByPlainData() },
		"joined-by":      func(h *history, a arguments) { h.addMembers(a...) },
		"leave":          func(h *history, _ arguments) { h.recordRemoval() },
		"name-data":      func(h *history, a arguments) { require.NoError(h.t, a.identity().Write(h.member.DataDir)) },
		"unname-data":    func(h *history, _ arguments) { h.remove(h.member.DataDir, archive.IdentityFile) },
		"forget-record":  func(h *history, _ arguments) { h.remove(h.volume, recordFile) },
		"flip-bit":       func(h *history, _ arguments) { h.flipBit() },
		"refuse":         func(h *history, a arguments) { h.rejectData(int64(a.number(0)), int64(a.number(1)), a.word(2)) },
		"preserve":       (*history).preserve,
		"delete-copy":    func(h *history, a arguments) { require.NoError(h.t, os.RemoveAll(h.preservedCopies()[a.number(0)])) },
		"room":           func(h *history, a arguments) { h.room = a.number(0) },
		// The store.
		"backup": func(h *history, a arguments) {
			member := a.word(1)
			if member == "self" {
				member = hex(positionOf(h.t, h.member.DataDir).MemberID)
			}
			h.initStore(at)
			h.uploadFullAs(member, ours, max(a.number(0), 1), at)
		},
		"full":          func(h *history, a arguments) { h.uploadFullAs("", ours, a.number(0), at) },
		"segment":       func(h *history, _ arguments) { h.uploadSegment() },
		"advance-store": func(h *history, _ arguments) { h.advanceStore() },
		"empty-store":   func(h *history, _ arguments) { h.emptyStore() },
		"generation": func(h *history, a arguments) {
			require.NoError(h.t, archivetest.BeginGeneration(h.t.Context(), h.archive, a.generation()))
		},
		"stray-generation": func(h *history, a arguments) {
			require.NoError(h.t, h.archive.BeginGeneration(h.t.Context(), a.generation()))
		},
		"other-cluster": func(h *history, a arguments) {
			_, err := h.archive.Create(h.t.Context(), archive.Cluster{Cluster: a.identity().Cluster, Owner: a.word(1), Created: at}, 1)
			require.NoError(h.t, err)
		},
		"reserve": func(h *history, a arguments) {
			identity, revision := a.identity(), margin+int64(a.number(1))
			reservation := archive.Reservation{Cluster: identity.Cluster, Generation: identity.Generation, Revision: revision, Created: at}
			require.NoError(h.t, h.archive.Reserve(h.t.Context(), reservation))
		},
		"replace-keys": func(h *history, _ arguments) { h.replaceKeys() },
		"use-keys":     func(h *history, a arguments) { h.useKeys(a.word(0), a.word(1), a.word(2)) },
		"unsigned": func(h *history, a arguments) {
			signed := h.archive
			h.archive = archive.New(h.store, &format.Keys{})
			h.step(a)
			h.archive = signed
		},
		"test-backup": func(h *history, _ arguments) { h.recordRestoreTest() },
		"end-session": func(h *history, a arguments) {
			h.endSession(format.Source{Session: a.word(0), Released: a.word(1) == "released"})
		},
		"corrupt": func(h *history, a arguments) {
			for _, name := range a {
				h.corrupt(h.objectName(name))
			}
		},
		"write-object": func(h *history, a arguments) { h.store.SetContent(a.word(0), []byte("x")) },
		"delete":       func(h *history, a arguments) { h.deleteAll(a.word(0)) },
		"fail":         (*history).fail,
		"heal":         func(h *history, _ arguments) { h.store.ClearFaults() },
		// Flags and configuration.
		"adopt": func(h *history, a arguments) { h.options.Adopt = strings.Replace(a.word(0), "ours", ours, 1) },
		"owner": func(h *history, a arguments) {
			h.options.Owner = func(token string) string { return a.word(0) + token }
		},
		"never":    func(h *history, a arguments) { h.options.Never = a.word(0) != "off" },
		"no-store": func(h *history, _ arguments) { h.options.Archive = nil },
		"forced":   func(h *history, _ arguments) { h.member.ForceNewCluster = true },
		"initial-cluster": func(h *history, a arguments) {
			var err error
			h.member.Members, err = types.NewURLsMap(a.word(0))
			require.NoError(h.t, err)
		},
		"discovery": func(h *history, _ arguments) { h.member.Alone = false },
		"joins":     func(h *history, _ arguments) { h.member.ClusterState = embed.ClusterStateFlagExisting },
		"served": func(h *history, a arguments) {
			h.options.Lost = func(dir string) bool { return dir == h.member.DataDir && a.word(0) != "off" }
		},
		"died": func(h *history, a arguments) { h.options.Died = func() string { return strings.Join(a, " ") } },
		"restore": func(h *history, a arguments) {
			if h.options.Request = nil; a.word(0) != "off" {
				h.options.Request = &Request{ID: a.word(0), Target: archive.Target{Revision: int64(a.number(1))}}
			}
		},
		"idle-time":   func(h *history, a arguments) { h.idleTime = h.duration(a, 0) },
		"late-mounts": func(h *history, a arguments) { h.lateMounts = h.duration(a, 0) },
		"pass":        func(h *history, a arguments) { h.clock = h.clock.Add(h.duration(a, 0)) },
		"clock": func(h *history, a arguments) {
			h.setClock(h.duration(a, 0))
			h.store.Now = func() time.Time { return h.clock.Add(h.duration(a, 1)) }
		},
		"spool-fails": (*history).failSpool,
		"upload":      (*history).setUpload,
		"fetch-fails": func(h *history, a arguments) {
			h.options.Inspect = func(_ context.Context, path string) error {
				return &fs.PathError{Op: "open", Path: path, Err: failures[a.word(0)]}
			}
		},
		// The runs.
		"peers":    (*history).setPeers,
		"in-pause": func(h *history, a arguments) { h.scheduled[a[0]] = append(h.scheduled[a[0]], a[1:]) },
		"before":   func(h *history, a arguments) { h.scheduled[a[0]] = append(h.scheduled[a[0]], a[1:]) },
		"cut":      func(h *history, a arguments) { h.interruptAt = a.word(0) },
		"patience": func(h *history, a arguments) { h.maxPauses = a.number(0) },
		"run":      func(h *history, _ arguments) { h.runAndReport() },
		// Steps that concern another member. give-data moves this member's data to that member.
		"give-data": func(h *history, _ arguments) {
			require.NoError(h.t, os.Rename(h.member.DataDir, h.elsewhere().member.DataDir))
		},
		"elsewhere": func(h *history, a arguments) { h.elsewhere().step(a) },
		// Output.
		"outcome": func(h *history, _ arguments) {
			h.print("outcome: %s, %s, revisions lost: %d", h.outcome.Cause, h.outcome.Ended, h.outcome.Lost)
		},
		"keys": func(h *history, _ arguments) {
			keys, revision := h.keys()
			h.print("keys: %s; revision %d", strings.Join(keys, ", "), revision)
		},
		"reported-upload": func(h *history, _ arguments) { h.print("reported as uploaded: %t", h.peers.reportedUploaded) },
		"copies":          func(h *history, _ arguments) { h.print("copies: %s", strings.Join(h.copyNames(), ", ")) },
		"members": func(h *history, _ arguments) {
			h.print("members of the cluster: %d", positionOf(h.t, h.member.DataDir).Members)
		},
		"generations": func(h *history, _ arguments) {
			for _, g := range h.generations() {
				head, err := h.archive.Head(h.t.Context(), g.Number)
				require.NoError(h.t, err)
				h.print("generation %d: from revision %d of %d, owner %s", g.Number, g.ParentRevision, g.Parent, g.Owner)
				h.printIf(g.Restore != "" || g.Restored != nil, "  restores: %s", append(g.Restored, g.Restore))
				h.printIf(g.Adopted != nil, "  adopted by %s", g.Adopted)
				if ending := head.Ending(); ending != nil {
					h.print("  ended by generation %d", ending.Successor)
				}
			}
		},
		"requests": func(h *history, _ arguments) {
			var requests []string
			for _, call := range h.store.Calls()[h.requestsBefore:] {
				requests = append(requests, fmt.Sprintf("%s %s", call.Op, call.Name))
			}
			slices.Sort(requests)
			h.print("requests: %s", strings.Join(slices.Compact(requests), ", "))
		},
	}
}

func (h *history) print(form string, values ...any) { fmt.Fprintf(&h.results, form+"\n", values...) }

func (h *history) remove(dir, name string) { require.NoError(h.t, os.Remove(filepath.Join(dir, name))) }

// duration returns the word at an index as a duration, or 0 if there is none.
func (h *history) duration(a arguments, i int) time.Duration {
	duration, err := time.ParseDuration(cmp.Or(a.word(i), "0"))
	require.NoError(h.t, err)
	return duration
}

// elsewhere returns the other member, creating it if necessary.
func (h *history) elsewhere() *history {
	if h.otherMember == nil {
		h.otherMember = newHistory(h.t, "new")
	}
	h.otherMember.store, h.otherMember.archive, h.otherMember.options.Archive = h.store, h.archive, h.options.Archive
	return h.otherMember
}

// failures maps the names used in histories to errors from the store, the disk and the spool.
var failures = map[string]error{
	"unavailable": store.ErrUnavailable, "denied": store.ErrDenied, "missing": store.ErrNotFound, "exists": store.ErrExists, "no-bucket": store.ErrNoBucket,
	"denied-with-advice": fmt.Errorf("403: %w: %s", store.ErrDenied, store.ErrDenied.NextStep()),
	"timeout":            context.DeadlineExceeded, "untrusted": format.ErrUntrusted, "no-identity": format.ErrNoIdentity, "damaged": format.ErrDamaged,
	"full": syscall.ENOSPC, "read-only": syscall.EROFS, "unreadable": syscall.EIO, "no-successor": errors.New("the segment does not continue the chain"),
	"lost-reply": memory.ErrUnreachable, "late": nil,
}

// fail injects a fault. The arguments are the kind of fault, the operation or "any" and, optionally, a name prefix
// and a count.
func (h *history) fail(a arguments) {
	err, known := failures[a[0]]
	require.True(h.t, known, "no such fault: %s", a)
	fault := memory.Fault{Op: memory.Op(strings.Replace(a.word(1), "any", "", 1)), Prefix: h.objectName(a.word(2)), Times: a.number(3), Err: err}
	switch a[0] {
	case "lost-reply":
		fault.ReplyLost = true
	case "late":
		fault.Prefix, fault.Hides = "", func(name string) bool { return strings.HasPrefix(name, a.word(2)) }
	}
	h.store.Inject(fault)
}

// objectName returns the object name or name prefix that a word of a history stands for.
func (h *history) objectName(word string) string {
	switch word {
	case "newest-manifest":
		return h.manifest()
	case "any":
		return ""
	}
	return word
}

// failSpool makes spool uploads fail with the given errors, one after the other.
func (h *history) failSpool(a arguments) {
	h.options.SpoolDir = filepath.Join(h.volume, "backup.spool")
	h.options.FlushSpool = func(context.Context, archive.Identity, int64) error {
		if len(a) == 0 {
			return nil
		}
		err := failures[a[0]]
		a = a[1:]
		return fmt.Errorf("segment 7: %w", err)
	}
}

// setUpload sets the result of uploading the volume's data: success, an error, or nothing uploaded.
func (h *history) setUpload(a arguments) {
	h.options.Flush = func(context.Context, string, datadir.Position) error {
		if a[0] == "works" {
			h.backUp()
		}
		return failures[a[0]]
	}
}

// useKeys sets the member's keys by name: a decryption key, a signing key and a list of trusted keys. The name "-"
// means no key.
func (h *history) useKeys(decrypt, sign, trust string) {
	named := func(name string) formattest.Keys {
		if _, made := h.keyFiles[name]; !made && name != "-" {
			h.keyFiles[name] = formattest.NewKeys(h.t)
		}
		return h.keyFiles[name]
	}
	files := format.KeyFiles{Recipients: named(decrypt).Recipients, Identities: named(decrypt).Identities, SigningKey: named(sign).SigningKey}
	var trusted []string
	for name := range strings.SplitSeq(trust, ",") {
		trusted = append(trusted, named(name).TrustedKeys)
	}
	if trust != "-" {
		files.TrustedKeys = formattest.JoinFiles(h.t, trusted...)
	}
	h.setKeys(formattest.LoadKeys(h.t, files))
}

// copyTimes maps the names used in histories to the times of preserved copies. The copy "mine" was made by a user.
var copyTimes = map[string]string{
	"oldest": "20260101T000000.000Z", "older": "20260102T000000.000Z", "newest": "20260103T000000.000Z", "future": "29990101T000000.000Z", "mine": "mine",
}

// preserve adds preserved copies of the data or the spool.
func (h *history) preserve(a arguments) {
	path := h.member.DataDir
	if a[0] == "spool" {
		path, a = h.options.SpoolDir, a[1:]
	}
	for _, name := range a {
		require.NoError(h.t, os.MkdirAll(filepath.Join(path+".aside-"+copyTimes[name], "member"), 0o700))
	}
}

// copyNames returns the names of preserved copies and of files with similar names.
func (h *history) copyNames() (names []string) {
	found, err := filepath.Glob(filepath.Join(h.volume, "*.aside-*"))
	require.NoError(h.t, err)
	for _, path := range found {
		original, suffix, _ := strings.Cut(filepath.Base(path), ".aside-")
		for name, time := range copyTimes {
			suffix = strings.Replace(suffix, time, name, 1)
		}
		names = append(names, original+" "+suffix)
	}
	return names
}

// listings maps the names used in histories to responses from the other members.
var listings = map[string]PeerState{
	"unknown": peers.Unknown, "no-quorum": peers.NoQuorum, "all-empty": peers.AllEmpty, "some-started": peers.SomeStarted, "all-lost": peers.AllLost,
	"restore-agreed": peers.RestoreAgreed, "expected": peers.Expected, "added": peers.Added, "started": peers.Started, "unlisted": peers.Unlisted,
}

// setPeers changes the responses from the other members.
func (h *history) setPeers(a arguments) {
	o := h.peers
	numbers := map[string]*int{"silent": &o.withoutQuorum, "running": &o.running, "older": &o.older, "voters": &o.voters}
	for _, word := range a {
		key, value, _ := strings.Cut(word, "=")
		id, _ := strconv.ParseUint(value, 16, 64)
		if number, known := numbers[key]; known {
			*number = arguments{value}.number(0)
			continue
		}
		switch key {
		case "list":
			require.Contains(h.t, listings, value)
			o.listing = listings[value]
		case "etcd":
			o.cluster = cmp.Or(id, h.etcd)
		case "cluster":
			identity := arguments{value}.identity()
			o.id, o.generation = identity.Cluster, identity.Generation
		case "outdated":
			o.outdated = errors.New(value)
		case "blocked":
			obstacle := map[string]error{"": nil, "learner": errors.New("a learner"), "too-few": peers.ErrTooFew}[value]
			o.blocked = slices.Repeat([]error{obstacle}, 20)
		case "change-fails":
			o.failChange = value
		case "revision":
			o.revision = int64(arguments{value}.number(0))
		case "lost-if-older":
			o.respond = func(self peers.Self) PeerState {
				if self.Volume == peers.Older || self.Volume == peers.Restores {
					return peers.AllLost
				}
				return peers.Unknown
			}
		case "other":
			o.other = id
		case "own":
			o.own = positionOf(h.t, h.member.DataDir).MemberID
		case "size":
			o.size = int64(arguments{value}.number(0))
		case "late":
			o.notUploaded = value != "off"
		case "no-quorum":
			o.noQuorum = true
		default:
			h.t.Fatalf("unknown setting of the other members: %s", key)
		}
	}
}

// runAndReport runs recovery and prints its states, messages, result and changes.
func (h *history) runAndReport() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	h.log.Reset()
	files, objects, identity := h.onVolume(), h.stored(), h.identityText()
	h.requestsBefore = len(h.store.Calls())
	r, pauses, bounded, wait := h.recovery(), 0, 0, h.wait
	r.wait = func(ctx context.Context, times int) {
		if until, isBounded := ctx.Deadline(); isBounded {
			require.LessOrEqual(h.t, time.Until(until), h.idleTime)
			bounded++
		}
		wait(ctx, times)
		pauses++
		h.performScheduled(strconv.Itoa(pauses))
		if pauses == h.maxPauses {
			cancel()
		}
	}
	r.interrupt = func(next Action) error {
		action := strings.ReplaceAll(string(next), " ", "-")
		h.performScheduled(action)
		if action == h.interruptAt {
			h.interruptAt = ""
			return errInterrupted
		}
		return nil
	}
	joins, err := r.prepare(ctx, h.member, h.examine)
	h.printLog()
	refusal, isRefused := errors.AsType[*exitcode.FinalError](err)
	switch {
	case errors.Is(err, context.Canceled):
		h.print("= waits")
	case errors.Is(err, errInterrupted):
		h.print("= cut off")
	case isRefused:
		h.print("= refused, exit status %d: %s", refusal.Status, err)
	case err != nil:
		h.print("= fails: %s", err)
	case joins != "":
		h.print("= joins %s", joins)
	default:
		h.print("= starts")
	}
	h.printIf(pauses > 0, "pauses: %d", pauses)
	h.printIf(bounded > 0, "  %d of them end when the generation is idle", bounded)
	h.printIf(r.Progress().Uncompared, "the status reports that the data was not compared with the store")
	h.printIf(r.Progress().Warning, "the status has a warning")
	changed := fmt.Sprintf("preserved copies: %d, unfinished directories: %d", len(h.preserved()), len(h.leftovers()))
	h.printIf(files != h.onVolume(), "the volume has changed; %s", changed)
	h.printIf(identity != h.identityText(), "the data belongs to %s", h.identityText())
	_, err = os.Stat(filepath.Join(h.member.DataDir, "member"))
	h.printIf(err != nil, "the volume has no data")
	h.printObjects("new in the store", h.stored(), objects)
	h.printObjects("deleted from the store", objects, h.stored())
	if h.peers != nil {
		h.printIf(h.peers.size > 0, "the volume needs room for %d bytes", h.neededBytes)
		h.printIf(len(h.peers.changes) > 0, "the cluster has %s the member", strings.Join(h.peers.changes, " and "))
		h.peers.changes = nil
		h.print("reported to the others: %s", h.peers.reported)
	}
}

// stored returns the names of the objects that were created and still exist, even if the store cannot list them.
func (h *history) stored() (names []string) {
	for _, call := range h.store.Calls() {
		if _, exists := h.store.Content(call.Name); exists && call.Op == memory.Put {
			names = append(names, call.Name)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// printObjects prints the names that are not in others.
func (h *history) printObjects(what string, names, others []string) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
	h.printIf(len(names) > 0, "%s: %s", what, strings.Join(names, ", "))
}

// performScheduled performs the steps that are scheduled for a pause, given by its number, or for an action. Each step
// is performed only once.
func (h *history) performScheduled(point string) {
	due := h.scheduled[point]
	delete(h.scheduled, point)
	for _, words := range due {
		h.step(words)
	}
}

func (h *history) printIf(holds bool, form string, values ...any) {
	if holds {
		h.print(form, values...)
	}
}

// onVolume describes the data directories: the position of the data and the names of all files except the recovery
// record.
func (h *history) onVolume() string {
	files := slices.DeleteFunc(h.files(), func(name string) bool { return name == recordFile })
	p, err := datadir.ReadPosition(h.member.DataDir)
	return fmt.Sprint(files, p.ClusterID, p.MemberID, p.Members, p.Revision, p.HighestRevision, p.Index, err)
}

func (h *history) identityText() string {
	if identity := h.identity(); identity.Known() {
		return fmt.Sprintf("cluster %s, generation %d", identity.Cluster, identity.Generation)
	}
	return "no cluster"
}

// printLog prints the states that a run visited and the logged messages, without the reasons for transitions.
func (h *history) printLog() {
	var states, messages []string
	for line := range strings.Lines(h.log.String()) {
		var entry struct{ Level, From, To, Message, Error string }
		require.NoError(h.t, json.Unmarshal([]byte(line), &entry))
		if entry.To != "" && (len(states) == 0 || states[len(states)-1] != entry.To) {
			states = append(states, entry.To)
		}
		if entry.Level == "warn" || entry.Level == "error" || entry.From == "" && entry.Level != "debug" {
			message := entry.Level + ": " + strings.TrimPrefix(entry.Message, "recovery: ")
			if entry.Error != "" {
				message += " (" + entry.Error + ")"
			}
			messages = append(messages, message)
		}
	}
	h.print("%s", strings.Join(append([]string{strings.Join(states, " > ")}, messages...), "\n"))
}

var varying = []struct {
	match *regexp.Regexp
	name  string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|\d{8}T\d{6}(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`at most \S+ before`), "at most a MOMENT before"},
	{regexp.MustCompile(`at \d\d:\d\d:\d\d \(store clock\)`), "at a TIME (store clock)"},
	{regexp.MustCompile(`clock-[A-Z2-7]{26}`), "clock-RANDOM"},
	{regexp.MustCompile(ours), "ours"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "ETCD-ID"},
}

var newCluster = regexp.MustCompile(`\b[0-9a-f]{32}\b`)

// normalized returns the results with placeholders for paths, times and IDs, which differ between runs.
func (h *history) normalized() string {
	text := strings.ReplaceAll(h.results.String(), h.volume, "VOLUME")
	for _, each := range varying {
		text = each.match.ReplaceAllString(text, each.name)
	}
	var ids []string
	return newCluster.ReplaceAllStringFunc(text, func(id string) string {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
		return fmt.Sprintf("NEW-CLUSTER-%d", slices.Index(ids, id)+1)
	})
}
