package member

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger carries etcd's zap logs into the wrapper's one stream, from the level of etcd's configuration on. What etcd
// logs as fatal or panic is a crash: zap would end the process before anybody could note the reason.
func (m *Member) logger(level string) *zap.Logger {
	threshold, err := zapcore.ParseLevel(level)
	if err != nil {
		threshold = zapcore.InfoLevel
	}
	core := &bridge{LevelEnabler: threshold, heard: m.heard, throttle: newThrottle(), log: m.options.Log.With().Str("component", "etcd").Logger()}
	hook := fatalHook{m}
	return zap.New(core, zap.AddCaller(), zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// bridge is a zap core that writes to zerolog.
type bridge struct {
	zapcore.LevelEnabler
	heard    func(message string)
	throttle *throttle
	log      zerolog.Logger
	fields   []zapcore.Field
}

func (b *bridge) With(fields []zapcore.Field) zapcore.Core {
	with := *b
	with.fields = append(b.fields[:len(b.fields):len(b.fields)], fields...)
	return &with
}

func (b *bridge) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(entry.Level) {
		return checked.AddCore(entry, b)
	}
	return checked
}

func (b *bridge) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	b.heard(entry.Message)
	write, over := b.throttle.admit(entry)
	for _, each := range over {
		b.log.WithLevel(levels[each.level]).Str("caller", each.caller()).Int("times", each.times).Int64("in_ms", each.in.Milliseconds()).
			Msg("etcd's log, more of this than is written: " + each.message)
	}
	if !write {
		return nil
	}
	line := b.log.WithLevel(b.level(entry))
	if line == nil {
		return nil
	}
	if entry.LoggerName != "" {
		line.Str("logger", entry.LoggerName)
	}
	if entry.Caller.Defined {
		line.Str("caller", entry.Caller.TrimmedPath())
	}
	line.Fields(encode(b.fields, fields)).Msg(entry.Message)
	return nil
}

// heard keeps what only etcd's log says of why a start does not come to its end.
func (m *Member) heard(message string) {
	if strings.Contains(message, "ignored") && strings.Contains(message, "cluster ID mismatch") {
		m.doing.Store("is ignored by a peer whose cluster has another ID: this data directory or that peer's is another cluster's")
	}
}

// level takes the alarm out of what etcd calls an error whenever a listener ends, asked for or not: if it was not, Watch
// says so.
func (b *bridge) level(entry zapcore.Entry) zerolog.Level {
	if entry.Message == "setting up serving from embedded etcd failed." {
		return zerolog.InfoLevel
	}
	return levels[entry.Level]
}

func (b *bridge) Sync() error { return nil }

func encode(groups ...[]zapcore.Field) map[string]any {
	encoder := zapcore.NewMapObjectEncoder()
	for _, fields := range groups {
		for _, field := range fields {
			field.AddTo(encoder)
		}
	}
	return encoder.Fields
}

var levels = map[zapcore.Level]zerolog.Level{
	zapcore.DebugLevel:  zerolog.DebugLevel,
	zapcore.InfoLevel:   zerolog.InfoLevel,
	zapcore.WarnLevel:   zerolog.WarnLevel,
	zapcore.ErrorLevel:  zerolog.ErrorLevel,
	zapcore.DPanicLevel: zerolog.ErrorLevel,
	zapcore.PanicLevel:  zerolog.PanicLevel,
	zapcore.FatalLevel:  zerolog.FatalLevel,
}

// fatalHook runs after zap has written a fatal or panic entry.
type fatalHook struct{ member *Member }

// OnWrite reports the crash and never returns: the code that called a failure fatal is not made to go on.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	h.member.crash(fatalReason(entry.Message, fields))
	select {}
}

// fatalReason is the message with what its fields say in words: a cause, versions, paths.
func fatalReason(message string, fields []zapcore.Field) error {
	reason := errors.New("etcd: " + message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			reason = fmt.Errorf("%w: %w", reason, cause)
		}
		if field.Type == zapcore.StringType {
			reason = fmt.Errorf("%w, %s %s", reason, field.Key, field.String)
		}
	}
	return reason
}

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
