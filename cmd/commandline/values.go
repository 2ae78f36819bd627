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

// Target is a state of etcd: after a revision, or at a time. The zero value is the latest. It converts to
// archive.Target.
type Target struct {
	Revision   int64     // 0 if not given
	Time       time.Time // zero if not given
	Generation int       // not part of the text
}

// clockAhead bounds how far another clock may be ahead of this machine's.
const clockAhead = time.Minute

// UnmarshalText is called by kong, which names the flag in front of the error. A time in the future is an error: the
// user means another one.
func (t *Target) UnmarshalText(text []byte) error {
	kind, value, _ := strings.Cut(string(text), ":")
	now := time.Now()
	switch kind {
	case "revision":
		revision, err := strconv.ParseInt(value, 10, 64)
		if err != nil || revision <= 0 {
			return fmt.Errorf("%q is not a revision, such as revision:12345", text)
		}
		*t = Target{Revision: revision}
	case "time":
		at, err := parseTime(value, now)
		if err != nil || at.IsZero() {
			return fmt.Errorf("%q is not a time with its zone, such as time:2026-11-22T12:00:00Z, nor one in this machine's, such as time:2026-11-22 12:00, nor how long ago, such as time:-15m", text)
		}
		if at.After(now.Add(clockAhead)) {
			return fmt.Errorf("%q is in the future: it is %s here", text, now.UTC().Format(time.RFC3339))
		}
		*t = Target{Time: at}
	default:
		if string(text) != "latest" {
			return fmt.Errorf("%q is not latest, revision:N or time:T, such as time:2026-11-22T12:00:00Z", text)
		}
		*t = Target{}
	}
	return nil
}

// parseTime reads a time with its zone, one as people write it, or how long ago it was.
func parseTime(value string, now time.Time) (time.Time, error) {
	if ago, is := strings.CutPrefix(value, "-"); is {
		long, err := time.ParseDuration(ago)
		return now.Add(-long), err
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

// Threshold is the value of --defrag-threshold: "free=45%,min=100Mi,pause=15s", or "never", for which Free is 0.
type Threshold struct {
	Free  float64       // the part of the file that must be free, from 0 to 1
	Min   Bytes         // that must be free
	Pause time.Duration // the longest expected pause of a defragmentation
}

// defaultPause is the pause of a threshold that sets none.
const defaultPause = 15 * time.Second

// UnmarshalText is called by kong, which puts the flag in front of the error.
func (t *Threshold) UnmarshalText(text []byte) error {
	read := Threshold{Pause: defaultPause}
	if string(text) != "never" {
		for part := range strings.SplitSeq(string(text), ",") {
			if err := read.set(part); err != nil {
				return fmt.Errorf("%w; write free=45%%,min=100Mi,pause=15s, or never", err)
			}
		}
		if read.Free == 0 || read.Min == 0 {
			return errors.New("free and min must both be given, as in free=45%,min=100Mi, and be more than 0; never turns it off")
		}
	}
	*t = read
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
			err = fmt.Errorf("%q is not a duration, such as 500ms or 15s", value)
		}
	default:
		err = fmt.Errorf("%q is neither free=…, min=… nor pause=…", part)
	}
	return err
}

// percentage reads "45%" as 0.45.
func percentage(text string) (float64, error) {
	number, is := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseUint(number, 10, 8)
	if err != nil || !is || percent < 1 || percent > 99 {
		return 0, fmt.Errorf("%q is not a percentage from 1%% to 99%%", text)
	}
	return float64(percent) / 100, nil
}

// duration reads a duration as kong does, and quotes back what is none.
func duration(line *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := line.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	read, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration, such as 500ms, 30s or 1h30m", text)
	}
	target.SetInt(int64(read))
	return nil
}

// Bytes is a size, written as Kubernetes writes quantities: a whole number of bytes, or one with Ki, Mi, Gi, Ti, k, M, G or T.
type Bytes int64

var units = []struct {
	name  string
	bytes int64
}{
	{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"", 1},
}

// UnmarshalText is called by kong, which names the flag in front of the error.
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
	return fmt.Errorf("%q is not a size, such as 1Gi or 500M", text)
}

// Port is a TCP port, written as Go reads numbers.
type Port uint16

// UnmarshalText is called by kong, which names the flag in front of the error.
func (p *Port) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 0, 0)
	if err != nil || n < 0 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not a port", text)
	}
	*p = Port(n)
	return nil
}

// Generation is the number of a generation; 0 if none was given.
type Generation int

// UnmarshalText is called by kong, which puts the flag in front of the error.
func (g *Generation) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a generation, such as 1; backup list shows those of a store", text)
	}
	*g = Generation(n)
	return nil
}
