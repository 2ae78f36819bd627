package faults_test

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// faults enables all tests of the fault suite instead of a selection.
var faults = flag.Bool("faults", false, "run all tests of the fault suite")

func onlyWithFaults(t *testing.T) {
	t.Helper()
	if !*faults {
		t.Skip("skipped: part of make test-faults")
	}
}

// tried contains the suite's trials, which are printed as a table at the end.
var tried ledger

// A ledger counts trials and failures by state and stimulus.
type ledger struct {
	mu   sync.Mutex
	rows []tally
}

type tally struct {
	state, stimulus      string
	runs, failed, missed int
}

// trial adds the test's result to the table, as a trial of the given stimulus in the given state.
func trial(t *testing.T, state, stimulus string) {
	t.Helper()
	t.Cleanup(func() { tried.add(state, stimulus, t.Failed(), t.Skipped()) })
}

func (l *ledger) add(state, stimulus string, failed, skipped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.rows, func(r tally) bool { return r.state == state && r.stimulus == stimulus })
	if at < 0 {
		at = len(l.rows)
		l.rows = append(l.rows, tally{state: state, stimulus: stimulus})
	}
	row := &l.rows[at]
	switch {
	case failed:
		row.runs++
		row.failed++
	case skipped:
		row.missed++
	default:
		row.runs++
	}
}

func (l *ledger) print(to io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !*faults || len(l.rows) == 0 {
		return
	}
	slices.SortStableFunc(l.rows, func(a, b tally) int { return strings.Compare(a.state+a.stimulus, b.state+b.stimulus) })
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nstate\tstimulus\truns\tfailures\tskipped")
	sum := tally{state: "all", stimulus: "all"}
	for _, row := range l.rows {
		row.print(table)
		sum.runs, sum.failed, sum.missed = sum.runs+row.runs, sum.failed+row.failed, sum.missed+row.missed
	}
	sum.print(table)
	_ = table.Flush() // an error would only affect the table
}

func (t tally) print(to io.Writer) {
	fmt.Fprintf(to, "%s\t%s\t%d\t%d\t%d\n", t.state, t.stimulus, t.runs, t.failed, t.missed)
}
