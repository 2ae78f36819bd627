package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

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
	write, over := b.throttle.admit(entry, about(b.fields, fields))
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

// routine is what etcd calls a warning or an error at each start or end, and which asks nothing of anybody. If a listener ends without
// being asked to, Watch says so.
var routine = []string{
	"Running http and grpc server on single port. This is not recommended for production.",
	"simple token is not cryptographically signed",
	"Failed to detect schema version",
	"failed to update storage version",
	"stopping insecure grpc server due to error", "stopped insecure grpc server due to error",
	"stopping secure grpc server due to error", "stopped secure grpc server due to error",
	"setting up serving from embedded etcd failed.",
}

// level takes the alarm out of what is routine.
func (b *bridge) level(entry zapcore.Entry) zerolog.Level {
	if slices.Contains(routine, entry.Message) {
		return min(levels[entry.Level], zerolog.InfoLevel)
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
	// mostOfAKind is how many lines of etcd's are written that say the same in the same place, before they are only counted; mostWarnings
	// is how many of those that wake people.
	mostOfAKind  = 5
	mostWarnings = 2
	// firstCount and lastCount bound the time for which a kind is counted; each is twice the one before, as long as it keeps coming.
	firstCount = 30 * time.Second
	lastCount  = 5 * time.Minute
	// mostLines is how many lines of etcd's a second there may be in all: with some 300 bytes each they are 4 MB a minute.
	mostLines = 200
	// mostNamed is how many kinds are named at once when their count is told; the others are counted together.
	mostNamed = 10
	// mostKinds is how many kinds are remembered.
	mostKinds = 1000
)

// throttle bounds what etcd may log, so that no line of it, however often it comes, fills a disk or hides another: etcd tries some
// things again without a pause, and says so each time. The first lines of a kind are written. Then they are counted, and one comes with
// each count. A kind that has not come for as long as it would be counted is new. Any goroutine of etcd's may use it.
type throttle struct {
	mu     sync.Mutex
	second time.Time // when the one began that is counted
	lines  int       // written in it
	kinds  map[kind]*count
	others int // lines that were not written, of kinds that are not remembered
}

// kind is what a line says, of what, and where in etcd.
type kind struct {
	level   zapcore.Level
	message string
	about   string
	file    string
	line    int
}

// count is how often a kind came in a time.
type count struct {
	began   time.Time
	lasts   time.Duration
	room    int // how many lines are still written
	dropped int
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

// about is what tells lines with the same message from each other: the peer, and the cause without its numbers, such as ports.
func about(groups ...[]zapcore.Field) (what string) {
	for _, field := range slices.Concat(groups...) {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			what += " " + strings.Map(withoutDigits, cause.Error())
		}
		if field.Type == zapcore.StringType && strings.HasSuffix(field.Key, "peer-id") {
			what += " " + field.String
		}
	}
	return what
}

func withoutDigits(r rune) rune {
	if unicode.IsDigit(r) {
		return -1
	}
	return r
}

func newThrottle() *throttle { return &throttle{kinds: map[kind]*count{}} }

// admit tells whether a line may be written, and what came more often than it was written, once it has been counted.
func (t *throttle) admit(entry zapcore.Entry, about string) (write bool, over []*excess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := entry.Time
	if since := now.Sub(t.second); since >= time.Second || since < 0 {
		over = t.turn(now, since)
		t.second, t.lines = now, 0
	}
	this := kind{entry.Level, entry.Message, about, entry.Caller.File, entry.Caller.Line}
	known := t.kinds[this]
	if known == nil && len(t.kinds) < mostKinds {
		known = &count{began: now, lasts: firstCount, room: mostOfAKind}
		if entry.Level >= zapcore.WarnLevel {
			known.room = mostWarnings
		}
		t.kinds[this] = known
	}
	write = t.lines < mostLines && (known == nil || known.room > 0)
	switch {
	case write && known != nil:
		known.room--
		fallthrough
	case write:
		t.lines++
	case known != nil:
		known.dropped++
	default:
		t.others++
	}
	return write, over
}

// turn tells the counts that are over, and forgets the kinds of which every line was written.
func (t *throttle) turn(now time.Time, second time.Duration) (over []*excess) {
	for this, is := range t.kinds {
		in := now.Sub(is.began)
		if in >= 0 && in < is.lasts {
			continue
		}
		if is.dropped == 0 {
			delete(t.kinds, this)
			continue
		}
		over = append(over, &excess{this, is.dropped, in})
		*is = count{began: now, lasts: min(2*is.lasts, lastCount), room: 1}
	}
	slices.SortFunc(over, func(a, b *excess) int { return b.times - a.times })
	for len(over) > mostNamed {
		t.others += over[len(over)-1].times
		over = over[:len(over)-1]
	}
	if t.others > 0 {
		over = append(over, &excess{kind{level: zapcore.WarnLevel, message: "of other lines"}, t.others, second})
		t.others = 0
	}
	return over
}
