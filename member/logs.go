package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// sampleInterval and maxEqualLines rate-limit etcd's log, because etcd retries some operations in a tight loop
	// and logs every attempt. At most maxEqualLines lines with the same level and message are written per interval;
	// any more are only counted.
	sampleInterval = 30 * time.Second
	maxEqualLines  = 5
)

// logger returns a zap logger that writes etcd's log to the wrapper's log, at the level from etcd's configuration.
// The logger reports fatal and panic entries as crashes, because zap would otherwise exit before the reason is
// recorded.
func (m *Member) logger(level string) *zap.Logger {
	threshold, err := zapcore.ParseLevel(level)
	if err != nil {
		threshold = zapcore.InfoLevel
	}
	core := &zapCore{LevelEnabler: threshold, dropped: &atomic.Int64{}, log: m.options.Log.With().Str("component", "etcd").Logger()}
	sampled := zapcore.NewSamplerWithOptions(core, sampleInterval, maxEqualLines, 0, zapcore.SamplerHook(func(entry zapcore.Entry, decision zapcore.SamplingDecision) {
		if decision == zapcore.LogDropped {
			core.dropped.Add(1)
		}
		m.observe(entry.Message)
	}))
	hook := fatalHook{m}
	return zap.New(sampled, zap.AddCaller(), zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// zapCore is a zapcore.Core that writes to zerolog.
type zapCore struct {
	zapcore.LevelEnabler
	dropped *atomic.Int64 // number of lines dropped since the last line written
	log     zerolog.Logger
	fields  []zapcore.Field
}

func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	with := *c
	with.fields = slices.Concat(c.fields, fields)
	return &with
}

func (c *zapCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *zapCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level, err := zerolog.ParseLevel(entry.Level.String())
	if err != nil { // zerolog has no equivalent of zap's dpanic
		level = zerolog.ErrorLevel
	}
	if slices.Contains(routine, entry.Message) {
		level = min(level, zerolog.InfoLevel)
	}
	line := c.log.WithLevel(level)
	if line == nil {
		return nil
	}
	if entry.LoggerName != "" {
		line.Str("logger", entry.LoggerName)
	}
	if entry.Caller.Defined {
		line.Str("caller", entry.Caller.TrimmedPath())
	}
	if dropped := c.dropped.Swap(0); dropped > 0 {
		line.Int64("dropped_lines", dropped)
	}
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range slices.Concat(c.fields, fields) {
		field.AddTo(encoder)
	}
	line.Fields(encoder.Fields).Msg(entry.Message)
	return nil
}

func (c *zapCore) Sync() error { return nil }

// observe updates Doing if a log message explains a slow start that etcd reports in no other way.
func (m *Member) observe(message string) {
	if strings.Contains(message, "ignored") && strings.Contains(message, "cluster ID mismatch") {
		m.doing.Store("waiting for a peer that ignores this member (cluster ID mismatch): one of the two has the data of another cluster")
	}
}

// routine lists warnings and errors that etcd logs during every normal start or stop. They are logged at info level at
// most. Failed listeners are still noticed, because Watch returns their errors.
var routine = []string{
	"Running http and grpc server on single port. This is not recommended for production.",
	"simple token is not cryptographically signed",
	"Failed to detect schema version",
	"failed to update storage version",
	"stopping insecure grpc server due to error", "stopped insecure grpc server due to error",
	"stopping secure grpc server due to error", "stopped secure grpc server due to error",
	"setting up serving from embedded etcd failed.",
}

// A fatalHook runs after zap has written a fatal or panic entry.
type fatalHook struct{ member *Member }

// OnWrite reports the crash and never returns, because the code that logged a fatal entry must not continue.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	h.member.crash(fatalReason(entry.Message, fields))
	select {}
}

// fatalReason returns an error with the message and any error and string fields, such as the cause, versions and
// paths.
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
