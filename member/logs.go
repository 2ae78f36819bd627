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

// logger writes etcd's zap logs to the wrapper's stream, from the level in etcd's configuration on. A fatal or panic
// entry is a crash: zap would end the process before the reason could be recorded.
func (m *Member) logger(level string) *zap.Logger {
	threshold, err := zapcore.ParseLevel(level)
	if err != nil {
		threshold = zapcore.InfoLevel
	}
	core := &bridge{LevelEnabler: threshold, heard: m.heard, throttle: newThrottle(), log: m.options.Log.With().Str("component", "etcd").Logger()}
	hook := fatalHook{m}
	return zap.New(core, zap.AddCaller(), zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// A bridge is a zap core that writes to zerolog.
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

// heard keeps reasons for a slow start that only etcd's log has.
func (m *Member) heard(message string) {
	if strings.Contains(message, "ignored") && strings.Contains(message, "cluster ID mismatch") {
		m.doing.Store("is ignored by a peer whose cluster has another ID: this data directory or that peer's is another cluster's")
	}
}

// routine lists warnings and errors that etcd logs at each start or end and that need no action. Watch reports a
// listener that ends unexpectedly.
var routine = []string{
	"Running http and grpc server on single port. This is not recommended for production.",
	"simple token is not cryptographically signed",
	"Failed to detect schema version",
	"failed to update storage version",
	"stopping insecure grpc server due to error", "stopped insecure grpc server due to error",
	"stopping secure grpc server due to error", "stopped secure grpc server due to error",
	"setting up serving from embedded etcd failed.",
}

// level lowers the level of routine entries.
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

// A fatalHook runs after zap has written a fatal or panic entry.
type fatalHook struct{ member *Member }

// OnWrite reports the crash and never returns: code that calls a failure fatal must not continue.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	h.member.crash(fatalReason(entry.Message, fields))
	select {}
}

// fatalReason returns the message with the fields that matter: a cause, versions, paths.
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
	// mostOfAKind is how many equal lines from one place are written before they are only counted; mostWarnings is
	// the number for warnings and errors.
	mostOfAKind  = 5
	mostWarnings = 2
	// firstCount and lastCount bound the time for which a kind is counted, which doubles as long as it keeps coming.
	firstCount = 30 * time.Second
	lastCount  = 5 * time.Minute
	// mostLines limits etcd's lines per second: at 300 bytes each, 4 MB a minute.
	mostLines = 200
	// mostNamed limits the kinds that a count names; the others are counted together.
	mostNamed = 10
	// mostKinds limits the kinds that are remembered.
	mostKinds = 1000
)

// A throttle bounds what etcd may log, so that no repeated line fills a disk or hides another one: etcd repeats some
// attempts without a pause and logs each. The first lines of a kind are written. Then they are counted, and one is
// written with each count. A kind that has not come for the length of a count is new. Any goroutine may use it.
type throttle struct {
	mu     sync.Mutex
	second time.Time // when the current second started
	lines  int       // written in it
	kinds  map[kind]*count
	others int // lines that were not written, of kinds that are not remembered
}

// A kind is a message, what it is about, and its place in etcd.
type kind struct {
	level   zapcore.Level
	message string
	about   string
	file    string
	line    int
}

// A count is how often a kind came in a time.
type count struct {
	began   time.Time
	lasts   time.Duration
	room    int // lines that may still be written
	dropped int
}

// An excess is how often a line was not written.
type excess struct {
	kind
	times int
	in    time.Duration
}

// caller formats the place as etcd's own lines do.
func (k kind) caller() string {
	if k.file == "" {
		return ""
	}
	return zapcore.EntryCaller{Defined: true, File: k.file, Line: k.line}.TrimmedPath()
}

// about returns what distinguishes lines with one message: the peer, and the cause without its numbers, such as
// ports.
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

// admit reports whether a line may be written, and returns the counts that are complete.
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

// turn returns the counts that are complete, and forgets kinds of which every line was written.
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
