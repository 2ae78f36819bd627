package recovery_test

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// sum contains statistics about all rounds of the chaos and takeover tests, which are printed at the end.
var sum = figures{disasters: map[string]int{}}

type figures struct {
	mu        sync.Mutex
	disasters map[string]int
	rounds    int
	writes    int // number of acknowledged writes
	undone    int // number of acknowledged writes that existed only on a lost volume
	restores  int
	killed    int // number of recoveries that were killed
	longest   time.Duration

	takeovers          int
	confirmed, lost    int           // number of writes reported as stored, and how many were lost
	longestOverlap     time.Duration // longest time that a pod ran after it was resumed or reconnected
	longestOverlapIdle time.Duration // longestOverlap, as measured by a Watch
}

func (f *figures) add(change func(*figures)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *figures) print(to io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.takeovers > 0 {
		fmt.Fprintf(to, "\n%d takeovers, %d writes confirmed, %d of them lost; the previous pod ran for at most %s after it was resumed or reconnected (%s on an idle machine)\n",
			f.takeovers, f.confirmed, f.lost, f.longestOverlap.Round(10*time.Millisecond), f.longestOverlapIdle.Round(10*time.Millisecond))
	}
	if f.rounds == 0 {
		return
	}
	fmt.Fprintf(to, "\n%d disasters, %d writes acknowledged, %d restores, %d recoveries killed; %d writes existed only on a lost volume; longest recovery: %s\n",
		f.rounds, f.writes, f.restores, f.killed, f.undone, f.longest.Round(10*time.Millisecond))
	for _, name := range slices.Sorted(maps.Keys(f.disasters)) {
		fmt.Fprintf(to, "%6d  %s\n", f.disasters[name], name)
	}
}
