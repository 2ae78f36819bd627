package commandline

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// A Target selects a state of etcd by revision or time. The zero value selects the latest state. A Target can be
// converted to archive.Target.
type Target struct {
	Revision   int64     // 0 if not set
	Time       time.Time // zero if not set
	Generation int       // 0 for any generation; set by the caller, because it has a flag of its own
}

// clockAhead is the tolerance for times in the future, which may come from a machine whose clock is ahead.
const clockAhead = time.Minute

// UnmarshalText implements encoding.TextUnmarshaler. kong prefixes the error with the name of the flag. Times in the
// future are rejected as mistakes.
func (t *Target) UnmarshalText(text []byte) error {
	kind, value, _ := strings.Cut(string(text), ":")
	now := time.Now()
	switch kind {
	case "revision":
		revision, err := strconv.ParseInt(value, 10, 64)
		if err != nil || revision <= 0 {
			return fmt.Errorf("%q is not a valid revision (example: revision:12345)", text)
		}
		*t = Target{Revision: revision}
	case "time":
		at, err := parseTime(value, now)
		if err != nil || at.IsZero() {
			return fmt.Errorf("%q is not a valid time (examples: time:2026-11-22T12:00:00Z, time:2026-11-22 12:00 in local time, time:-15m)", text)
		}
		if at.After(now.Add(clockAhead)) {
			return fmt.Errorf("%q is in the future: the local clock shows %s", text, now.UTC().Format(time.RFC3339))
		}
		*t = Target{Time: at}
	default:
		if string(text) != "latest" {
			return fmt.Errorf("%q is not one of latest, revision:N and time:T (example: time:2026-11-22T12:00:00Z)", text)
		}
		*t = Target{}
	}
	return nil
}

// parseTime parses an RFC 3339 time, a time without a time zone, or a duration before now.
func parseTime(value string, now time.Time) (time.Time, error) {
	if ago, relative := strings.CutPrefix(value, "-"); relative {
		d, err := time.ParseDuration(ago)
		return now.Add(-d), err
	}
	var at time.Time
	var err error
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err = time.ParseInLocation(layout, value, time.Local); err == nil {
			break
		}
	}
	return at, err
}

// A Threshold is the value of --defrag-threshold, such as "free=45%,min=100Mi,pause=15s". A Threshold whose Free is 0
// means "never".
type Threshold struct {
	Free  float64       // minimum free fraction of the database file, between 0 and 1
	Min   Bytes         // minimum number of free bytes
	Pause time.Duration // maximum expected duration of a defragmentation
}

// defaultPause is used if a threshold does not set a pause.
const defaultPause = 15 * time.Second

// UnmarshalText implements encoding.TextUnmarshaler. kong prefixes the error with the name of the flag.
func (t *Threshold) UnmarshalText(text []byte) error {
	threshold := Threshold{Pause: defaultPause}
	if string(text) != "never" {
		for part := range strings.SplitSeq(string(text), ",") {
			if err := threshold.set(part); err != nil {
				return fmt.Errorf("%w; use a value such as free=45%%,min=100Mi,pause=15s, or never", err)
			}
		}
		if threshold.Free == 0 || threshold.Min == 0 {
			return errors.New("free and min must both be greater than 0, as in free=45%,min=100Mi; never disables defragmentation")
		}
	}
	*t = threshold
	return nil
}

func (t *Threshold) set(part string) (err error) {
	name, value, _ := strings.Cut(part, "=")
	switch name {
	case "free":
		t.Free, err = percentage(value)
	case "min":
		err = t.Min.UnmarshalText([]byte(value))
	case "pause":
		if t.Pause, err = time.ParseDuration(value); err != nil || t.Pause < 0 {
			err = fmt.Errorf("%q is not a valid duration (examples: 500ms, 15s)", value)
		}
	default:
		err = fmt.Errorf("%q is not one of free=…, min=… and pause=…", part)
	}
	return err
}

// percentage parses a percentage: "45%" becomes 0.45.
func percentage(text string) (float64, error) {
	number, hasSign := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseUint(number, 10, 8)
	if err != nil || !hasSign || percent < 1 || percent > 99 {
		return 0, fmt.Errorf("%q is not a percentage between 1%% and 99%%", text)
	}
	return float64(percent) / 100, nil
}

// duration parses a duration as kong does, but quotes an invalid value in the error.
func duration(line *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := line.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a valid duration (examples: 500ms, 30s, 1h30m)", text)
	}
	target.SetInt(int64(d))
	return nil
}

// Bytes is a size in bytes. Its text form is a Kubernetes quantity: a whole number with an optional suffix Ki, Mi,
// Gi, Ti, k, M, G or T.
type Bytes int64

var units = []struct {
	name  string
	bytes int64
}{
	{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"", 1},
}

// String formats the size with the largest unit that divides it evenly.
func (b Bytes) String() string {
	for _, unit := range units {
		if b != 0 && int64(b)%unit.bytes == 0 {
			return strconv.FormatInt(int64(b)/unit.bytes, 10) + unit.name
		}
	}
	return "0"
}

// UnmarshalText implements encoding.TextUnmarshaler. kong prefixes the error with the name of the flag.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, unit := range units {
		number, has := strings.CutSuffix(string(text), unit.name)
		if !has {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.bytes {
			break
		}
		*b = Bytes(n * unit.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a valid size (examples: 1Gi, 500M)", text)
}

// Port is a TCP port.
type Port uint16

// UnmarshalText implements encoding.TextUnmarshaler. kong prefixes the error with the name of the flag.
func (p *Port) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 0, 0)
	if err != nil || n < 0 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not a valid port (must be 0 to %d)", text, math.MaxUint16)
	}
	*p = Port(n)
	return nil
}

// A Generation is the number of a generation, or 0 if the flag is not set.
type Generation int

// UnmarshalText implements encoding.TextUnmarshaler. kong prefixes the error with the name of the flag.
func (g *Generation) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a valid generation (example: 1): run \"etcd-wrapper backup list\" to show the store's generations", text)
	}
	*g = Generation(n)
	return nil
}
