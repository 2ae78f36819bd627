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

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// everything has the matrix tried in full, which takes minutes: go test ./bootstrap/datadir -run Matrix -matrix -v.
var everything = flag.Bool("matrix", false, "alter data directories in every way, and not only in a few")

// What the test binary does as a child: serve runs a plain etcd and prints the state it serves, judge prints our verdicts.
const (
	childServe = "child-serve"
	childJudge = "child-judge"
)

// childPatience is how long a plain etcd has to serve a directory before it counts as one that does not start.
const childPatience = 20 * time.Second

// fate is what becomes of a directory with plain etcd.
type fate string

const (
	whole  fate = "whole"  // every revision of every key is served as before
	lossy  fate = "lossy"  // etcd serves something else, without a word
	broken fate = "broken" // etcd does not start
)

// judgement is ours, of Verify in full mode and of Inspect.
type judgement struct{ Refused, Inspected, Warned string }

func (j judgement) word() string {
	switch {
	case j.Refused != "":
		return "refused"
	case j.Warned != "":
		return "warned"
	default:
		return "accepted"
	}
}

// trial is one altered directory.
type trial struct {
	alteration
	base   string
	fate   fate
	judged judgement
}

// Plain etcd is asked about each altered directory, and so are we. Data that it serves in full are refused nowhere, and
// data that it serves in part are taken nowhere, but for what is named with the alteration.
func TestMatrixOfAlteredDirectories(t *testing.T) {
	var trials []trial
	for name, prepare := range bases() {
		dir := prepare(t)
		state, err := served(t, dir, t.TempDir())
		require.NoError(t, err, "plain etcd serves the unaltered %s", name)
		for _, alteration := range alterations(t, dir) {
			if *everything || alteration.quick && name == "closed" {
				trials = append(trials, trial{alteration: alteration, base: name})
			}
		}
		tryAll(t, dir, state, name, trials)
	}
	counts := map[string]int{}
	for _, tried := range trials {
		counts[fmt.Sprintf("etcd: %-6s  full: %-8s", tried.fate, tried.judged.word())]++
		if tried.judged.Inspected != "" {
			counts[fmt.Sprintf("etcd: %-6s  before the start: refused", tried.fate)]++
		}
		t.Logf("%-6s %-8s %s: %s  %.150s", tried.fate, tried.judged.word(), tried.base, tried.name, tried.judged.Refused+tried.judged.Warned)
		tried.hold(t)
	}
	t.Logf("%d directories", len(trials))
	for _, combination := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%s  %d", combination, counts[combination])
	}
}

func (tried trial) hold(t *testing.T) {
	what := tried.base + ": " + tried.name
	switch tried.fate {
	case whole:
		assert.Empty(t, tried.judged.Inspected, "%s is served in full, and refused before the start", what)
		if !tried.latent {
			assert.Empty(t, tried.judged.Refused, "%s is served in full, and refused", what)
		}
	case lossy:
		if !tried.unseen {
			assert.NotEmpty(t, tried.judged.Refused, "%s is served in part, and taken", what)
		}
	case broken: // etcd itself says why
	}
}

// tryAll has some directories tried at a time: an etcd that starts waits most of the time.
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
			trials[i].fate, trials[i].judged = try(t, dir, state, trials[i].alteration)
		})
	}
	work.Wait()
}

func try(t *testing.T, dir, state string, alteration alteration) (fate, judgement) {
	room, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer os.RemoveAll(room)
	altered := filepath.Join(room, "new.etcd")
	assert.NoError(t, os.CopyFS(altered, os.DirFS(dir)))
	alteration.alter(t, altered)
	judged, err := judged(t, altered)
	assert.NoError(t, err, alteration.name)
	now, err := served(t, altered, room)
	switch {
	case err != nil:
		return broken, judged
	case now == state:
		return whole, judged
	default:
		return lossy, judged
	}
}

// served is what plain etcd serves of a directory, or why it does not.
func served(t *testing.T, dir, room string) (state string, err error) {
	out := filepath.Join(room, "state")
	if output, err := child(t, childServe, dir, out); err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	content, err := os.ReadFile(out)
	return string(content), err
}

// judged runs our checks in a process of its own, as standalone does: bbolt's page check may end it, which is a refusal.
func judged(t *testing.T, dir string) (found judgement, err error) {
	output, failed := child(t, childJudge, dir, "-")
	if failed != nil {
		return judgement{Refused: "crashed: " + strings.SplitN(string(output), "\n", 2)[0]}, nil
	}
	return found, json.Unmarshal(output, &found)
}

func child(t *testing.T, what, dir, argument string) (output []byte, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), childPatience)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0], what, dir, argument)
	command.WaitDelay = time.Second
	return command.CombinedOutput()
}

// serve is the child that runs a plain etcd: it writes the hash of every revision of every key to a file.
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

// judge is the child that prints our verdicts.
func judge(dir string) error {
	var found judgement
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
