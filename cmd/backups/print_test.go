package backups

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/readiness/status/terminal"
)

// continued matches the line break and indentation where terminal.Table has wrapped a long cell.
var continued = regexp.MustCompile(`\n {12,}`)

// printed returns the text of a document with wrapped lines joined and runs of spaces collapsed. printed also checks
// that the lines of a Listing are not longer than 80 characters.
func printed(t *testing.T, document interface{ Print(to io.Writer) error }) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, document.Print(&out))
	var lines []string
	if _, ok := document.(Listing); ok {
		for line := range strings.Lines(out.String()) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
		}
	}
	for line := range strings.Lines(continued.ReplaceAllString(out.String(), " ")) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

var began = time.Date(2026, time.November, 21, 1, 2, 3, 0, time.UTC)

func generation() archive.GenerationContents {
	full := archive.Full{Generation: 2, Revision: 42, Time: began, Database: format.Body{Bytes: 3 << 30}, Member: "b71f", Reason: "schedule"}
	result := archive.Result{Revision: 42, Outcome: archive.Verified, At: time.Now().Add(-90 * time.Second)}
	return archive.GenerationContents{
		Generation: archive.Generation{Number: 2, Cluster: "1c45", Parent: 1, ParentRevision: 40, Created: began},
		Fulls: []archive.StoredFull{
			{Full: full, Size: 2 << 20, Result: &result},
			{Full: archive.Full{Revision: 43, Time: began}, Size: 5 << 20, Err: errors.New("not signed by a trusted\x1b key")},
		},
		Objects: []archive.Object{{Level: archive.Segment, Size: 1 << 20}, {Level: archive.Minute, Size: 1 << 20}},
		Chains:  []archive.Chain{{From: 42, To: 77, Begin: began, End: began.Add(time.Hour)}},
	}
}

func TestListing_Print(t *testing.T) {
	overview := Listing{Store: "file:///b", Generations: []GenerationListing{ofGeneration(generation(), nil)}}
	text := printed(t, overview)
	for _, line := range []string{
		"generation 2, since " + terminal.FormatTime(began) + ", restored from generation 1 at revision 40",
		"cluster 1c45",
		"restore points revisions 42 to 77, " + terminal.FormatTime(began) + " to " + terminal.FormatTime(began.Add(time.Hour)),
		"last verified yes, revision 42, 1m30s ago",
		"segments 2 objects, 2.0 MiB",
		"revision:42 2.0 MiB 3.0 GiB " + terminal.FormatTime(began) + " yes, 1m30s ago",
		"revision:43 5.0 MiB " + terminal.FormatTime(began) + ` cannot be used: not signed by a trusted\x1b key`,
	} {
		assert.Contains(t, strings.Split(text, "\n"), line)
	}
	names := printed(t, overview.WithNames())
	for _, revision := range []int64{42, 43} {
		assert.Contains(t, names, "\n"+archive.FullName(revision, began)+" ")
	}
}

func TestCount(t *testing.T) {
	one := generation()
	one.Objects = one.Objects[:1]
	assert.Contains(t, printed(t, Listing{Generations: []GenerationListing{ofGeneration(one, nil)}}), "segments 1 object, 1.0 MiB")
	item := retention.Item{Kind: retention.Segments, Objects: 1, Revision: 9}
	assert.Equal(t, "segments in 1 object, starting at revision 9", describeItem(item))
	var out bytes.Buffer
	require.NoError(t, ExportResult{File: "out.db", Revision: 5, Full: "x", Rows: 1}.Print(&out))
	assert.Contains(t, out.String(), "built from full snapshot x and 1 row;")
}

func TestListing_encrypted(t *testing.T) {
	encrypted := generation()
	encrypted.Fulls[0].Encrypted = true
	assert.Contains(t, printed(t, Listing{Generations: []GenerationListing{ofGeneration(encrypted, nil)}}), " 2.0 MiB 3.0 GiB "+terminal.FormatTime(began)+" yes, 1m30s ago; encrypted")
}

func TestListing_failedRestoreTest(t *testing.T) {
	failed := archive.Result{Revision: 50, Segments: true, Outcome: archive.Failed, Why: "its hash differs", At: time.Now()}
	overview := Listing{Generations: []GenerationListing{ofGeneration(generation(), []archive.Result{failed})}}
	assert.Contains(t, printed(t, overview), "last verified FAILED: its hash differs, revision 50")
}

func TestListing_JSON(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, JSON(&out, Listing{Store: "file:///b", Generations: []GenerationListing{ofGeneration(generation(), nil)}}))
	var document map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &document))
	g := document["generations"].([]any)[0].(map[string]any)
	assert.Equal(t, map[string]any{"from": 42., "to": 77., "begin": "2026-11-21T01:02:03Z", "end": "2026-11-21T02:02:03Z"}, g["windows"].([]any)[0])
	assert.Equal(t, "verified", g["fulls"].([]any)[0].(map[string]any)["verified"].(map[string]any)["outcome"])
}

func TestListing_empty(t *testing.T) {
	assert.Contains(t, printed(t, Listing{Store: "file:///b"}), "no backups")
}

func TestListing_sidecar(t *testing.T) {
	listing := Listing{Sidecar: []SidecarChain{{Full: "v2/Full-0-9-1", From: 9, To: 30, Begin: began, End: began, Deltas: 3, Bytes: 1 << 20}}}
	text := printed(t, listing)
	assert.Contains(t, text, "\nrevision:9 30 "+terminal.FormatTime(began)+", 3 deltas, 1.0 MiB")
	assert.Contains(t, printed(t, listing.WithNames()), "\nFull-0-9-1 30 "+terminal.FormatTime(began))
	assert.NotContains(t, text, "no backups")
	listing.Sidecar[0].Full = "v2/Full-\x1b[2J-9-1"
	assert.Contains(t, printed(t, listing.WithNames()), `Full-\x1b[2J-9-1`, "names are escaped, because anyone with write access to the store can choose them")
}

func TestPruneResult_Print(t *testing.T) {
	pruned := PruneResult{
		Store: "file:///b", Policy: "points=24h", From: began, Done: retention.Deletion{Objects: 2, Bytes: 1 << 20, Locked: 1},
		Items: []retention.Item{
			{Kind: retention.Generation, Generation: 1, Goes: true, Why: "old"},
			{Kind: retention.Full, Generation: 2, Name: "x", Time: began, Bytes: 1 << 20, Why: "in the point-in-time window"},
			{Kind: retention.Segments, Generation: 2, Objects: 3, Revision: 9, Goes: true, Why: "before"},
			{Kind: retention.Remains, Generation: 2, Objects: 1, Goes: true, Why: "never finished"},
		},
	}
	text := strings.Split(printed(t, pruned), "\n")
	for _, line := range []string{
		"delete the entire generation, 0 bytes: old",
		"keep full x, 1.0 MiB, " + terminal.FormatTime(began) + ": in the point-in-time window",
		"delete segments in 3 objects, starting at revision 9, 0 bytes: before",
		"delete remains of 1 incomplete full snapshot, 0 bytes: never finished",
		"deleted 2 objects (1.0 MiB); 1 locked object will be deleted later",
	} {
		assert.Contains(t, text, line)
	}
	pruned.Items[1].Name, pruned.Items[1].Why = "0000000000000000001-20261123T203030Z", "older than the policy requires; manifest cannot be verified"
	pruned.Policy, pruned.Assumed = "points=24h,hourly=24,daily=7,weekly=4", true
	var out bytes.Buffer
	require.NoError(t, pruned.Print(&out))
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, len(line), 80+1, line)
	}
	pruned.FailedChecks = []string{"the clock is wrong"}
	text = strings.Split(printed(t, pruned), "\n")
	assert.Contains(t, text, "would delete the entire generation, 0 bytes: old")
	assert.NotContains(t, strings.Join(text, " "), "deleted 2")
}

func TestListing_gap(t *testing.T) {
	gap := generation()
	gap.Chains = append(gap.Chains, archive.Chain{From: 90, To: 99, Begin: began, End: began})
	gap.Chains[0].PastEnd, gap.Ignored = errors.New("gap in the chain"), errors.New("garbage")
	text := printed(t, Listing{Generations: []GenerationListing{ofGeneration(gap, nil)}})
	lines := strings.Split(text, "\n")
	at := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasSuffix(line, "later revisions cannot be read: gap in the chain")
	})
	require.GreaterOrEqual(t, at, 0)
	assert.Regexp(t, `(?m)^ignored +garbage$`, text)
	assert.Contains(t, lines[at], "restore points revisions 42 to 77")
	assert.Contains(t, lines[at+1], "restore points revisions 90 to 99")
}
