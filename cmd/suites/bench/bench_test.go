//go:build bench

// Package bench_test compares the program with plain etcd built from the same module, and prints a table that
// docs/benchmarks.md explains. It runs only in `make bench`.
package bench_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

var (
	strict = flag.Bool("strict", false, "fail if a target is not met")
	growth = flag.Bool("growth", false, "enable the topic growth, which uses databases of 0.1, 1 and 4 GB; takes minutes and writes 20 GB")
	only   = flag.String("only", "", "measure only the topics whose names contain one of these comma-separated words")
)

type topic struct {
	name    string
	measure func(t *testing.T) []row
}

// topics lists the measurements. They run sequentially because they would otherwise affect each other.
var topics = []topic{
	{"start", startAndStop},
	{"member", memberOfThree},
	{"reaction", reaction},
	{"watches", stopWithWatches},
	{"memory", idleMemory},
	{"footprint", footprint},
	{"load", underLoad},
	{"probes", underProbes},
	{"quorum", lossOfQuorum},
	{"waking", wakeThree},
	{"restart", rollingRestart},
	{"restart alone", restartAlone},
	{"defragmentation", defragmentation},
	{"machine", machineStep},
	{"binary", binarySize},
	{"log", inspection},
	{"validation", fullValidation},
	{"growth", databaseGrowth},
	{"backup", backupsUnderLoad},
	{"backup pace", backupsAtPace},
	{"backup full", fullBackup},
	{"restore", restores},
	{"cost", requestCosts},
	{"ack", acknowledgement},
}

// TestBench measures plain etcd and the wrapper side by side and prints a single table.
func TestBench(t *testing.T) {
	wanted := chosen(t)
	buildStatic(t)
	var rows []row
	for _, topic := range wanted {
		fmt.Fprintln(os.Stderr, "measuring:", topic.name)
		t.Run(topic.name, func(t *testing.T) { rows = append(rows, topic.measure(t)...) })
	}
	fmt.Println("\n" + machine(t) + "\n\n" + table(rows))
	if *strict {
		for _, r := range rows {
			assert.True(t, r.met || r.target == "", "%s: target %s", r.what, r.target)
		}
	}
}

// chosen returns the topics whose names contain a word from -only, or all topics if -only is empty. For example,
// "backup" selects every backup topic.
func chosen(t *testing.T) []topic {
	t.Helper()
	if *only == "" {
		return topics
	}
	var found []topic
	for word := range strings.SplitSeq(*only, ",") {
		before := len(found)
		for _, topic := range topics {
			if slices.Contains(strings.Fields(topic.name), word) {
				found = append(found, topic)
			}
		}
		require.Greater(t, len(found), before, "-only: no topic name contains the word %q; topics: %v", word, topics)
	}
	return found
}

// String returns the topic's name.
func (topic topic) String() string { return topic.name }

// machine describes the machine on which the benchmark runs.
func machine(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	require.NoError(t, unix.Uname(&name))
	return fmt.Sprintf("%d cores of %s, %s of RAM, Linux %s, %s", runtime.NumCPU(),
		field(t, "/proc/cpuinfo", "model name"), field(t, "/proc/meminfo", "MemTotal"),
		unix.ByteSliceToString(name.Release[:]), runtime.Version())
}

// field reads a file of "name: value" lines and returns the first value with the given name.
func field(t *testing.T, path, name string) string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	require.FailNow(t, "not found", "%s in %s", name, path)
	return ""
}

// plainProgram is the path of the etcd binary, which is built from the same module as the wrapper.
var plainProgram string

// buildStatic builds both programs with the release build flags.
func buildStatic(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	harness.Program, plainProgram = filepath.Join(dir, "etcd-wrapper"), filepath.Join(dir, "etcd")
	for path, source := range map[string]string{harness.Program: "etcd-wrapper/cmd/etcd-wrapper", plainProgram: "go.etcd.io/etcd/server/v3"} {
		output, err := goTool("build", "-trimpath", "-ldflags=-s -w", "-o", path, source)
		require.NoError(t, err, output)
	}
}
