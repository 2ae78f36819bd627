package recovery_test

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// sum contains the long runs' results, which are printed at the end.
var sum = figures{disasters: map[string]int{}}

type figures struct {
	mu        sync.Mutex
	disasters map[string]int
	rounds    int
	writes    int // acknowledged writes
	undone    int // acknowledged writes that existed only on a lost volume
	restores  int
	killed    int // recoveries that were killed
	longest   time.Duration

	takeovers          int
	kept, lost         int           // writes reported as stored, and how many of them are missing after a takeover
	longestOverlap     time.Duration // longest time that a pod took to exit after its return
	longestOverlapIdle time.Duration // longestOverlap in idle-machine time
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
		fmt.Fprintf(to, "\n%d takeovers, %d writes confirmed, %d of them lost; the previous pod ran for at most %s after its return, %s as on an idle machine\n",
			f.takeovers, f.kept, f.lost, f.longestOverlap.Round(10*time.Millisecond), f.longestOverlapIdle.Round(10*time.Millisecond))
	}
	if f.rounds == 0 {
		return
	}
	fmt.Fprintf(to, "\n%d disasters, %d writes acknowledged, %d restores, %d recoveries killed; %d writes were only on a volume that was lost; longest from start to ready %s\n",
		f.rounds, f.writes, f.restores, f.killed, f.undone, f.longest.Round(10*time.Millisecond))
	for _, name := range slices.Sorted(maps.Keys(f.disasters)) {
		fmt.Fprintf(to, "%6d  %s\n", f.disasters[name], name)
	}
}
