package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/exitcode"
)

// What cannot be gone back to is said in one sentence: whether it is no target (64), or is not kept, and what is (78).
func TestEveryTargetThatCannotBeHadEndsWithASentence(t *testing.T) {
	store := kept(t) // revision 7 of now
	empty := "--backup-store=file://" + t.TempDir()
	at := func(when time.Time) string { return "time:" + when.UTC().Format(time.RFC3339) }
	for _, example := range []struct {
		target string
		status exitcode.Code
		says   string
	}{
		{"revision:0", exitcode.Usage, "is not a revision"},
		{"revision:-3", exitcode.Usage, "is not a revision"},
		{"revision:seven", exitcode.Usage, "is not a revision"},
		{"revision:99999999999999999999", exitcode.Usage, "is not a revision"},
		{"time:noon", exitcode.Usage, "is not a time"},
		{at(time.Now().Add(time.Hour)), exitcode.Usage, "is in the future"},
		{"revision:1", exitcode.NotKept, "revisions 7 to 7"},
		{"revision:6", exitcode.NotKept, "revisions 7 to 7"},
		{"revision:8", exitcode.NotKept, "revisions 7 to 7"},
		{"revision:9223372036854775807", exitcode.NotKept, "revisions 7 to 7"},
		{at(time.Now().Add(-time.Hour)), exitcode.NotKept, "revisions 7 to 7"},
	} {
		for _, args := range [][]string{
			{"backup", "export", store, "--to=" + example.target, filepath.Join(t.TempDir(), "out.db")},
			{"backup", "verify", store, "--to=" + example.target},
			{"restore", store, "--to=" + example.target, "--data-dir=" + filepath.Join(t.TempDir(), "new.etcd")},
		} {
			var log bytes.Buffer
			status := run(args, streams{out: io.Discard, log: &log})
			assert.Equal(t, example.status, status, "%v: %s", args, &log)
			assert.Contains(t, log.String(), example.says, args)
			assert.Equal(t, 1, strings.Count(log.String(), "\n"), "%v: one sentence: %s", args, &log)
		}
		if example.status == exitcode.Usage {
			var log bytes.Buffer
			status := run([]string{
				"start-etcd", "--standalone", store, "--restore-to=" + example.target, "--restore-id=x", "--volume-dir=" + t.TempDir(),
			}, streams{out: io.Discard, log: &log})
			assert.Equal(t, exitcode.Usage, status)
			assert.Contains(t, log.String(), example.says)
			assert.Contains(t, log.String(), "--restore-to")
		}
		if example.status == exitcode.NotKept {
			var log bytes.Buffer
			assert.Equal(t, exitcode.NotKept, run([]string{"restore", empty, "--to=" + example.target, "--data-dir=" + filepath.Join(t.TempDir(), "x")}, streams{out: io.Discard, log: &log}))
			assert.Contains(t, log.String(), "which has nothing that can be restored")
		}
	}
}
