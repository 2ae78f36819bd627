package backup

import (
	"errors"
	"fmt"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// scheduleFlag is the flag's name, with which every error starts.
const scheduleFlag = "--backup-full-schedule"

const (
	shiftSpread   = time.Hour            // upper limit of the offset derived from a cluster ID; see For
	shortestEvery = time.Minute          // shortest interval with @every
	longestEvery  = 366 * 24 * time.Hour // longest interval with @every
	searchYears   = 9                    // years to search for the next date; no February 29 between 2096 and 2104
)

// shorthands maps named schedules to cron fields.
var shorthands = map[string]string{"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0"}

// cronFields parses the five standard cron fields. As in crontab, if both the day of the month and the day of the week
// are set, a date matches if either does.
var cronFields = cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom).
	WithMaxSearchYears(searchYears)

// Schedule determines when full snapshots are due (--backup-full-schedule), in UTC. Use ParseSchedule to create one:
// the zero value is invalid. A Schedule is immutable and safe for concurrent use.
type Schedule struct {
	text  string
	times interface{ Next(time.Time) time.Time }
	shift time.Duration
}

// ParseSchedule parses five cron fields (minute, hour, day of month, month, day of week), @hourly, @daily, @weekly,
// or @every followed by a duration between one minute and one year. All times are in UTC, and @every counts from the
// Unix epoch. Errors start with the name of the flag.
func ParseSchedule(text string) (Schedule, error) {
	times, err := parseSchedule(strings.TrimSpace(text))
	if err != nil {
		return Schedule{}, fmt.Errorf("%s: %q %w", scheduleFlag, text, err)
	}
	return Schedule{text: text, times: times}, nil
}

var errScheduleUsage = errors.New("must be five cron fields (minute, hour, day of month, month, day of week), @hourly, @daily, " +
	"@weekly or @every with a duration, such as @every 6h")

func parseSchedule(text string) (interface{ Next(time.Time) time.Time }, error) {
	if period, ok := strings.CutPrefix(text, "@every "); ok {
		return parseInterval(strings.TrimSpace(period))
	}
	if known, ok := shorthands[text]; ok {
		text = known
	}
	if len(strings.Fields(text)) != 5 || strings.HasPrefix(text, "@") {
		return nil, errScheduleUsage
	}
	times, err := cronFields.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("is invalid: %w", err)
	}
	if times.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, errors.New("never matches any date")
	}
	return times, nil
}

func parseInterval(text string) (interval, error) {
	period, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New("needs a duration after @every, such as 6h or 90m")
	case period < shortestEvery || period > longestEvery:
		return 0, fmt.Errorf("must have an interval of %v to %v", shortestEvery, longestEvery)
	default:
		return interval(period), nil
	}
}

// For returns the schedule shifted by a fixed offset of less than one hour, derived from the cluster ID. The offset
// spreads the full snapshots of clusters that share a store or a machine.
func (s Schedule) For(cluster uint64) Schedule {
	s.shift = time.Duration(cluster%uint64(shiftSpread/time.Second)) * time.Second
	return s
}

// Next returns the first time after the given one at which a full snapshot is due.
func (s Schedule) Next(after time.Time) time.Time {
	return s.times.Next(after.UTC().Add(-s.shift)).Add(s.shift)
}

// String returns the text that was parsed.
func (s Schedule) String() string { return s.text }

// interval is a schedule with @every: times are multiples of the interval since the Unix epoch.
type interval time.Duration

// Next returns the first multiple of the interval after the given time.
func (e interval) Next(after time.Time) time.Time {
	period := time.Duration(e)
	since := after.Sub(time.Unix(0, 0))
	return time.Unix(0, 0).UTC().Add((since/period + 1) * period)
}
