package commandline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Target is a state of etcd to go back to: the one after a revision, or the one at a time; the zero value is the latest.
type Target struct {
	Revision int64     // 0 if it is not asked for
	Time     time.Time // zero if it is not asked for
}

// UnmarshalText is called by kong, which names the flag in front of the error.
func (t *Target) UnmarshalText(text []byte) error {
	kind, value, _ := strings.Cut(string(text), ":")
	var err error
	switch kind {
	case "latest":
		if value == "" && string(text) == kind {
			*t = Target{}
			return nil
		}
	case "revision":
		var revision int64
		if revision, err = strconv.ParseInt(value, 10, 64); err == nil && revision > 0 {
			*t = Target{Revision: revision}
			return nil
		}
		return fmt.Errorf("%q is not a revision, such as revision:12345", text)
	case "time":
		var at time.Time
		if at, err = time.Parse(time.RFC3339Nano, value); err == nil && !at.IsZero() {
			*t = Target{Time: at}
			return nil
		}
		return fmt.Errorf("%q is not a time with its zone, such as time:2026-11-22T12:00:00Z", text)
	}
	return errors.New(`must be latest, revision:N or time:T, such as time:2026-11-22T12:00:00Z`)
}

// ahead is how far somebody's clock may be ahead of this machine's.
const ahead = time.Minute

// Check says that a time has not come yet: whoever writes one means another.
func (t Target) Check(now time.Time) error {
	if t.Time.After(now.Add(ahead)) {
		return fmt.Errorf("%s is in the future: it is %s here", t, now.UTC().Format(time.RFC3339))
	}
	return nil
}

// String is the target as it is written.
func (t Target) String() string {
	switch {
	case t.Revision != 0:
		return fmt.Sprintf("revision:%d", t.Revision)
	case !t.Time.IsZero():
		return "time:" + t.Time.Format(time.RFC3339Nano)
	default:
		return "latest"
	}
}
