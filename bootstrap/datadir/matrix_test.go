package datadir

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// everything selects the full matrix, which takes minutes: go test ./bootstrap/datadir -run Matrix -matrix -v.
var everything = flag.Bool("matrix", false, "run all alterations of data directories instead of a few")

// Child commands of the test binary: childServe runs etcd and writes a hash of the served data to a file, and
// childCheck prints the results of the wrapper's checks.
const (
	childServe = "child-serve"
	childCheck = "child-check"
)

// childTimeout is the maximum time that etcd may take to start on a data directory.
const childTimeout = 20 * time.Second

// An outcome is the result of starting etcd on a data directory.
type outcome string

const (
	complete outcome = "complete" // etcd serves all revisions of all keys
	lossy    outcome = "lossy"    // etcd silently serves different data
	failed   outcome = "failed"   // etcd does not start
)

// checkResults contains the errors of Verify in full mode (Refused) and of Inspect (Inspected), and the warnings.
type checkResults struct{ Refused, Inspected, Warned string }

func (j checkResults) word() string {
	switch {
	case j.Refused != "":
		return "refused"
	case j.Warned != "":
		return "warned"
	default:
		return "accepted"
	}
}

// A trial is an altered data directory with the results of starting etcd and of the wrapper's checks.
type trial struct {
	alteration
	base    string
	outcome outcome
	results checkResults
}

// TestMatrix_alteredDirectories compares the wrapper's checks with plain etcd on altered data directories. The
// checks must accept data that etcd serves completely and reject data that etcd serves incompletely, unless the
// alteration is marked as an exception.
func TestMatrix_alteredDirectories(t *testing.T) {
	var trials []trial
	for name, prepare := range bases() {
		dir := prepare(t)
		state, err := served(t, dir, t.TempDir())
		require.NoError(t, err, "plain etcd must serve the unaltered data directory %q", name)
		for _, alteration := range alterations(t, dir) {
			if *everything || alteration.quick && name == "closed" {
				trials = append(trials, trial{alteration: alteration, base: name})
			}
		}
		tryAll(t, dir, state, name, trials)
	}
	counts := map[string]int{}
	for _, tried := range trials {
		counts[fmt.Sprintf("etcd: %-8s  Verify: %-8s", tried.outcome, tried.results.word())]++
		if tried.results.Inspected != "" {
			counts[fmt.Sprintf("etcd: %-8s  Inspect: refused", tried.outcome)]++
		}
		t.Logf("%-8s %-8s %s: %s  %.150s", tried.outcome, tried.results.word(), tried.base, tried.name, tried.results.Refused+tried.results.Warned)
		tried.requireExpected(t)
	}
	t.Logf("%d directories", len(trials))
	for _, combination := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%s  %d", combination, counts[combination])
	}
}

// requireExpected checks the wrapper's results against the outcome of starting etcd.
func (tried trial) requireExpected(t *testing.T) {
	what := tried.base + ": " + tried.name
	switch tried.outcome {
	case complete:
		assert.Empty(t, tried.results.Inspected, "%s: etcd serves all data, but Inspect rejects the directory", what)
		if !tried.latent {
			assert.Empty(t, tried.results.Refused, "%s: etcd serves all data, but Verify rejects the directory", what)
		}
	case lossy:
		if !tried.unseen {
			assert.NotEmpty(t, tried.results.Refused, "%s: etcd loses data, but Verify accepts the directory", what)
		}
	case failed: // Verify need not detect this, because etcd itself reports the reason
	}
}

// tryAll runs trials in parallel, because etcd spends most of its startup waiting.
func tryAll(t *testing.T, dir, state, base string, trials []trial) {
	var work sync.WaitGroup
	slots := make(chan struct{}, 6)
	for i := range trials {
		if trials[i].base != base {
			continue
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			trials[i].outcome, trials[i].results = try(t, dir, state, trials[i].alteration)
		})
	}
	work.Wait()
}

func try(t *testing.T, dir, state string, alteration alteration) (outcome, checkResults) {
	tempDir, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer os.RemoveAll(tempDir)
	altered := filepath.Join(tempDir, "new.etcd")
	assert.NoError(t, os.CopyFS(altered, os.DirFS(dir)))
	alteration.alter(t, altered)
	results, err := checkInChild(t, altered)
	assert.NoError(t, err, alteration.name)
	now, err := served(t, altered, tempDir)
	switch {
	case err != nil:
		return failed, results
	case now == state:
		return complete, results
	default:
		return lossy, results
	}
}

// served returns the state that etcd serves from a data directory, or the error from starting etcd.
func served(t *testing.T, dir, tempDir string) (state string, err error) {
	out := filepath.Join(tempDir, "state")
	if output, err := inChildOf(t, childServe, dir, out); err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	content, err := os.ReadFile(out)
	return string(content), err
}

// checkInChild runs the wrapper's checks in a separate process, as with --standalone. If the bbolt page check
// crashes, the data counts as rejected.
func checkInChild(t *testing.T, dir string) (found checkResults, err error) {
	output, failed := inChildOf(t, childCheck, dir, "-")
	if failed != nil {
		return checkResults{Refused: "crashed: " + strings.SplitN(string(output), "\n", 2)[0]}, nil
	}
	return found, json.Unmarshal(output, &found)
}

func inChildOf(t *testing.T, what, dir, argument string) (output []byte, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), childTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0], what, dir, argument)
	command.WaitDelay = time.Second
	return command.CombinedOutput()
}

// serve runs etcd in a child process and writes a hash of all revisions of all keys to a file.
func serve(dir, out string) error {
	server, err := datadirtest.Start(dir)
	if err != nil {
		return err
	}
	defer server.Close()
	hash, revision, err := server.Server.KV().HashStorage().HashByRev(0)
	if err != nil {
		return err
	}
	return os.WriteFile(out, fmt.Appendf(nil, "%+v at %d", hash.Hash, revision), 0o600)
}

// printChecks prints the results of the wrapper's checks in a child process.
func printChecks(dir string) error {
	var found checkResults
	if err := Look(dir, "").Inspect(Identity{Name: "default"}, zerolog.Nop()); err != nil {
		found.Inspected = err.Error()
	}
	warnings, err := Verify(context.Background(), dir, bootstrap.Full)
	if err != nil {
		found.Refused = err.Error()
	}
	found.Warned = strings.Join(warnings, "; ")
	return json.NewEncoder(os.Stdout).Encode(found)
}

// An alteration is a single change to a data directory.
type alteration struct {
	name   string
	alter  func(t *testing.T, dir string)
	quick  bool // included by default
	latent bool // Verify may reject data that etcd serves, because etcd has not read the damaged part yet
	unseen bool // Verify may accept data that etcd does not serve, because the files do not reveal the alteration
}

// bases returns the data directories to alter, from four etcd servers: a closed one, one with purged segments, one
// killed before it committed the database, and one started with a restored database.
func bases() map[string]func(t *testing.T) string {
	if !*everything {
		return map[string]func(t *testing.T) string{"closed": datadirtest.New}
	}
	return map[string]func(t *testing.T) string{"closed": datadirtest.New, "purged": purged, "killed": killed, "restored": restored}
}

func purged(t *testing.T) string {
	dir := datadirtest.New(t)
	segments := segmentsOf(t, dir)
	newest, err := verifySnapshots(t.Context(), survey(dir, ""), must(readLog(t.Context(), survey(dir, ""), nil)))
	require.NoError(t, err)
	for i, path := range segments[1:] {
		if _, before, _ := parseSegmentName(filepath.Base(path)); before+1 <= newest.Index {
			remove(t, segments[i])
		}
	}
	return dir
}

func killed(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	etcd := exec.Command(os.Args[0], childEtcd, dir, "120")
	stdout, err := etcd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, etcd.Start())
	for line := ""; line != "stored 119"; {
		_, err := fmt.Fscanln(stdout, new(string), &line)
		require.NoError(t, err)
		line = "stored " + line
	}
	require.NoError(t, etcd.Process.Kill())
	_ = etcd.Wait() // reports that the process was killed
	return dir
}

func restored(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: datadirtest.New(t) + "/member/snap/db", SkipHashCheck: true, OutputDataDir: dir,
		Name: "default", PeerURLs: []string{"http://127.0.0.1:1"}, InitialCluster: "default=http://127.0.0.1:1", InitialClusterToken: "etcd",
		RevisionBump: 1e9, MarkCompacted: true,
	}))
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	defer server.Close()
	for i := range 30 {
		_, err := v3client.New(server.Server).Put(t.Context(), fmt.Sprint("later-", i), "value")
		require.NoError(t, err)
	}
	return dir
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// alterations returns all alterations of a data directory: changes to each file, and additional files.
func alterations(t *testing.T, dir string) (all []alteration) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		require.NoError(t, err)
		name := must(filepath.Rel(dir, path))
		switch {
		case entry.IsDir() && name != ".":
			all = append(all, directoryAlterations(name)...)
		case entry.Type().IsRegular():
			all = append(all, fileAlterations(name)...)
			all = append(all, damages(t, path, name)...)
		}
		return nil
	}))
	return append(append(all, extras()...), combinations()...)
}

func at(name string, change func(t *testing.T, path string)) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) { change(t, filepath.Join(dir, name)) }
}

func directoryAlterations(name string) []alteration {
	return []alteration{
		{name: name + " is missing", alter: at(name, remove), unseen: name == "member"}, // without the member directory, there is no data
		{name: name + " is a link", alter: link(func(_ *testing.T, dir string) string { return filepath.Join(dir, name) })},
		{name: name + " is a file", alter: at(name, func(t *testing.T, path string) { remove(t, path); write(t, path, "") })},
		{name: name + " has mode 000", alter: at(name, chmodTo(0))},
		{name: name + " has mode 777", alter: at(name, chmodTo(0o777))},
	}
}

func chmodTo(mode os.FileMode) func(t *testing.T, path string) {
	return func(t *testing.T, path string) { assert.NoError(t, os.Chmod(path, mode)) }
}

func fileAlterations(name string) []alteration {
	isLog := strings.HasSuffix(name, ".wal")
	return []alteration{
		{name: name + " is missing", alter: at(name, remove), unseen: isLog},
		{name: name + " is empty", alter: at(name, func(t *testing.T, path string) { truncate(t, path, 0) }), unseen: isLog},
		{name: name + " is truncated to half its size", alter: at(name, halve), unseen: isLog},
		{name: name + " has additional bytes at the end", alter: at(name, lengthen), unseen: isLog, latent: isLog},
		{name: name + " is a link", alter: link(func(_ *testing.T, dir string) string { return filepath.Join(dir, name) })},
		{name: name + " is a directory", alter: at(name, func(t *testing.T, path string) { remove(t, path); mkdir(t, path) })},
		{name: name + " has mode 000", alter: at(name, chmodTo(0))},
		{name: name + " is renamed to *.bak", alter: at(name, func(t *testing.T, path string) { rename(t, path, path+".bak") }), unseen: isLog},
		{name: name + " is renamed but keeps its suffix", alter: at(name, func(t *testing.T, path string) {
			rename(t, path, filepath.Join(filepath.Dir(path), "x"+filepath.Ext(path)))
		}), unseen: isLog},
	}
}

func halve(t *testing.T, path string) {
	info, err := os.Stat(path)
	assert.NoError(t, err)
	truncate(t, path, info.Size()/2)
}

func lengthen(t *testing.T, path string) {
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	write(t, path, string(content)+strings.Repeat("?", 100))
}

// damages returns alterations that flip bytes and zero sectors throughout a file. For the database, other alterations
// zero a meta page or flip one of its bytes.
func damages(t *testing.T, path, name string) (all []alteration) {
	info, err := os.Stat(path)
	require.NoError(t, err)
	isLog, isDatabase := strings.HasSuffix(name, ".wal"), strings.HasSuffix(name, "db")
	steps := int64(16)
	for i := range steps {
		offset := info.Size() * i / steps
		common := alteration{quick: i == 1 && strings.HasSuffix(name, firstSegment), unseen: isLog || isDatabase, latent: isLog || isDatabase}
		flipped, zeroed := common, common
		zeroed.quick = false
		flipped.name, zeroed.name = fmt.Sprintf("%s has an inverted byte at %d", name, offset), fmt.Sprintf("%s has a zeroed sector at %d", name, offset)
		flipped.alter = at(name, func(t *testing.T, path string) { flip(t, path, offset) })
		zeroed.alter = at(name, func(t *testing.T, path string) { zero(t, path, offset, sector) })
		all = append(all, flipped, zeroed)
	}
	for page := 0; isDatabase && page < 2; page++ {
		begin := int64(page * os.Getpagesize())
		all = append(all, alteration{name: fmt.Sprintf("meta page %d is zeroed", page), quick: true, alter: at(name, func(t *testing.T, path string) { zero(t, path, begin, os.Getpagesize()) })})
		for offset := begin; offset < begin+metaEnds+8; offset += 4 {
			all = append(all, alteration{name: fmt.Sprintf("meta page %d has an inverted byte at %d", page, offset-begin), alter: at(name, func(t *testing.T, path string) { flip(t, path, offset) })})
		}
	}
	return all
}

func zero(t *testing.T, path string, offset int64, size int) {
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	part := content[offset:]
	clear(part[:min(size, len(part))])
	write(t, path, string(content))
}

// extras returns files and directories that other programs may create in a data directory.
func extras() (all []alteration) {
	for _, name := range []string{
		"lost+found", ".touch", "notes", "new.etcd.part", "new.etcd.bak", "safe_guard", "exit_code", "exit_code.crash", "member.uninitialized-1", "member.bak",
		"member/.touch", "member/notes", "member/wal.tmp", "member/wal.broken", "member/wal/0.tmp", "member/wal/1.tmp", "member/wal/.touch",
		"member/wal/x.wal", "member/wal/0000000000000000-0000000000000000.wal.broken", "member/wal/x.wal.tmp", "member/wal/.nfs1",
		"member/snap/tmp123", "member/snap/db.tmp.123", "member/snap/db.tmp", "member/snap/x.snap", "member/snap/x.snap.broken", "member/snap/x.snap.db",
		"member/snap/0000000000000001.snap.db", "member/snap/00000000000fffff.snap.db", "member/snap/0000000000000001-0000000000000001.snap",
		"member/snap/00000000000000ff-00000000ffffffff.snap", "member/snap/notes", "member/snap/.touch",
	} {
		all = append(all,
			alteration{name: name + " exists", quick: strings.HasSuffix(name, "/x.wal") || strings.HasSuffix(name, "/x.snap"), alter: at(name, func(t *testing.T, path string) { write(t, path, "?") })},
			alteration{name: name + " exists and is empty", alter: at(name, func(t *testing.T, path string) { write(t, path, "") })},
			alteration{name: name + " is a directory", alter: at(name, func(t *testing.T, path string) { remove(t, path); mkdir(t, path) })})
	}
	return append(all, alteration{name: "a snapshot is a named pipe", alter: at("member/snap/x.snap", func(t *testing.T, path string) {
		assert.NoError(t, unix.Mkfifo(path, 0o600))
	})})
}

// combinations returns alterations that damage several files at once.
func combinations() []alteration {
	snapshots := func(change func(t *testing.T, path string)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, name := range survey(dir, "").snapshots() {
				change(t, filepath.Join(dir, "member", "snap", name))
			}
		}
	}
	garbage := func(t *testing.T, path string) { write(t, path, "garbage") }
	database := func(change func(t *testing.T, path string)) func(t *testing.T, dir string) {
		return at("member/snap/db", change)
	}
	empty := func(t *testing.T, path string) { truncate(t, path, 0) }
	together := func(steps ...func(t *testing.T, dir string)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, step := range steps {
				step(t, dir)
			}
		}
	}
	return []alteration{
		{name: "all snapshots are missing", alter: snapshots(remove), quick: true},
		{name: "all snapshots are garbage", alter: snapshots(garbage), quick: true},
		{name: "snapshots and database are missing", alter: together(snapshots(remove), database(remove)), quick: true},
		{name: "snapshots are missing, the database is empty", alter: together(snapshots(remove), database(empty)), quick: true},
		{name: "snapshots are garbage, the database is empty", alter: together(snapshots(garbage), database(empty)), latent: true},
		{name: "snapshots are missing, the database is new", alter: together(snapshots(remove), database(remove), emptyDatabase)},
	}
}
