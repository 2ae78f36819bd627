package datadir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

var verbs = regexp.MustCompile(`%[a-z]`)

// sentence returns the format as written in the docs.
func (r reason) sentence() string { return verbs.ReplaceAllString(r.format, "…") }

func TestRefusals_areInTheRunbook(t *testing.T) {
	rows := docs.Table(t, "what you see", "what it means", "what to do")
	require.NotEmpty(t, reasons)
	for _, kind := range reasons {
		row := docs.Find(rows, kind.sentence())
		if assert.NotNil(t, row, "put %q into the table of docs/refusals.md", kind.sentence()) {
			assert.NotEmpty(t, row[1])
			wayOut := row[2]
			for _, way := range docs.Table(t, "remedy", "steps") { // the table defines the shared remedies
				wayOut = strings.ReplaceAll(wayOut, way[0], way[1])
			}
			assert.Contains(t, wayOut, kind.wayOut, kind.sentence())
		}
	}
}

// Every error must include advice, because without it users would be stuck: the next start fails with the same error.
func TestRefusals_suggestAnAction(t *testing.T) {
	for _, kind := range reasons {
		assert.NotEmpty(t, kind.wayOut, kind.format)
	}
	unforeseen := withWayOut(t.Context(), errors.New("unforeseen"))
	assert.EqualError(t, unforeseen, "unforeseen; to recover: "+restoreBackup)
	assert.Equal(t, unforeseen, withWayOut(t.Context(), unforeseen), "an error gets only one way to recover")
	assert.NoError(t, withWayOut(t.Context(), nil))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	assert.EqualError(t, withWayOut(stopped, errors.New("stopped")), "stopped", "an interruption needs no advice")
}

// Every reason must be used, and every error from the checks must have a reason, so that it includes advice.
func TestChecks_returnOnlyReasons(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"verify.go", "survey.go", "inspect.go"} {
		content, err := os.ReadFile(filepath.Clean(name))
		require.NoError(t, err)
		text.Write(content)
		checks := regexp.MustCompile(`(?ms)^func (?:\([^)]*\) )?(check|is)\w+\(.*?^}`).FindAll(content, -1)
		require.NotEmpty(t, checks, name)
		for _, check := range checks {
			assert.NotContains(t, string(check), "fmt.Errorf(", "%s: errors must include a way to recover", name)
		}
	}
	content, err := os.ReadFile("refusal.go")
	require.NoError(t, err)
	text.Write(content)
	for _, match := range regexp.MustCompile(`(?m)^\t(\w+) += newReason\(`).FindAllSubmatch(content, -1) {
		assert.Regexp(t, string(match[1])+`(\.errorf\()`, text.String(), "the reason %s is never used", match[1])
	}
}

// If the only problem is that the files belong to another user, the advice must not be to restore from a backup.
func TestRefusal_missingPermission(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "db", Err: syscall.EACCES}
	assert.EqualError(t, corruptDatabase.errorf("db", denied), "database db: open db: permission denied; to recover: "+letRead)
	assert.EqualError(t, corruptDatabase.errorf("db", errors.New("torn")), "database db: torn; to recover: "+restoreBackup)
}
