package member

import (
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"
)

const (
	// mostOfAKind is how many lines of etcd's a second may say the same in the same place.
	mostOfAKind = 10
	// mostLines is how many lines of etcd's a second there may be in all: with some 300 bytes each they are 4 MB a minute.
	mostLines = 200
	// mostKinds is how many kinds are named that came too often in a second; the others are counted together.
	mostKinds = 10
)

// throttle bounds what etcd may log, so that no line of it, however often it comes, fills a disk: etcd tries some things again without
// a pause. The first lines of a kind are written, the others are counted. Any goroutine of etcd's may use it.
type throttle struct {
	mu      sync.Mutex
	second  time.Time // when the one began that is counted
	lines   int       // written in it
	came    map[kind]int
	dropped map[kind]*excess // in it
}

// kind is what a line says, and where in etcd.
type kind struct {
	level   zapcore.Level
	message string
	file    string
	line    int
}

// excess is how often a line came that was not written.
type excess struct {
	kind
	times int
	in    time.Duration
}

// caller is the place as etcd's own lines name it.
func (k kind) caller() string {
	if k.file == "" {
		return ""
	}
	return zapcore.EntryCaller{Defined: true, File: k.file, Line: k.line}.TrimmedPath()
}

func newThrottle() *throttle { return &throttle{came: map[kind]int{}, dropped: map[kind]*excess{}} }

// admit tells whether a line may be written, and what came too often in the second that is over.
func (t *throttle) admit(entry zapcore.Entry) (write bool, over []*excess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if since := entry.Time.Sub(t.second); since >= time.Second || since < 0 {
		over = t.turn(since)
		t.second = entry.Time
	}
	this := kind{entry.Level, entry.Message, entry.Caller.File, entry.Caller.Line}
	t.came[this]++
	if t.came[this] <= mostOfAKind && t.lines < mostLines {
		t.lines++
		return true, over
	}
	if t.dropped[this] == nil {
		t.dropped[this] = &excess{kind: this}
	}
	t.dropped[this].times++
	return false, over
}

// turn begins another second.
func (t *throttle) turn(since time.Duration) (over []*excess) {
	over = slices.SortedFunc(maps.Values(t.dropped), func(a, b *excess) int { return b.times - a.times })
	if len(over) > mostKinds {
		others := &excess{kind: kind{level: zapcore.WarnLevel, message: "of other lines"}}
		for _, each := range over[mostKinds:] {
			others.times += each.times
		}
		over = append(over[:mostKinds], others)
	}
	for _, each := range over {
		each.in = since
	}
	t.lines = 0
	clear(t.came)
	clear(t.dropped)
	return over
}
