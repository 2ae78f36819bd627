package retention

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// keepFlag starts every error about a policy.
const keepFlag = "--backup-keep"

const (
	day  = 24 * time.Hour
	week = 7 * day

	longestPoints = 10 * 365 * day
	mostFulls     = 10_000 // of a kind
)

// A Policy defines which backups stay. The zero value requires none.
type Policy struct {
	// Points is the length of the window up to now in which every revision can be restored.
	Points time.Duration
	// Hourly, Daily and Weekly are the numbers of hours, days and weeks before the window of which the last verified full snapshot stays.
	Hourly, Daily, Weekly int
}

// ParsePolicy parses --backup-keep: points=, a duration such as 24h, 7d or 2w, and hourly=, daily= and weekly=, whole numbers, separated
// by commas. Missing keys are 0. The error starts with the flag.
func ParsePolicy(text string) (policy Policy, err error) {
	counts, given := map[string]*int{"hourly": &policy.Hourly, "daily": &policy.Daily, "weekly": &policy.Weekly}, map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		count := counts[key]
		switch {
		case given[key]:
			return Policy{}, fmt.Errorf("%s: %s is given twice", keepFlag, key)
		case key == "points":
			policy.Points, err = parsePoints(value)
		case count != nil:
			*count, err = parseCount(value)
		default:
			return Policy{}, fmt.Errorf("%s: %q is not points=, hourly=, daily= or weekly=", keepFlag, key)
		}
		if given[key] = true; err != nil {
			return Policy{}, fmt.Errorf("%s: %s %w", keepFlag, key, err)
		}
	}
	if policy == (Policy{}) {
		return policy, fmt.Errorf("%s: every number is 0, so only the newest backup would be kept", keepFlag)
	}
	return policy, nil
}

func parsePoints(text string) (time.Duration, error) {
	points, err := time.ParseDuration(text)
	for unit, length := range map[string]time.Duration{"d": day, "w": week} {
		number, is := strings.CutSuffix(text, unit)
		if n, failed := strconv.Atoi(number); is && failed == nil && n >= 0 && n <= int(longestPoints/length) {
			points, err = time.Duration(n)*length, nil
		}
	}
	if err != nil || points < 0 || points > longestPoints {
		return 0, fmt.Errorf("%q is not a duration up to ten years, such as 24h, 7d or 2w", text)
	}
	return points, nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > mostFulls {
		return 0, fmt.Errorf("%q is not a whole number from 0 to %d", text, mostFulls)
	}
	return n, nil
}

// String returns the policy in the form that ParsePolicy parses.
func (p Policy) String() string {
	return fmt.Sprintf("points=%s,hourly=%d,daily=%d,weekly=%d", zeros.ReplaceAllString(p.Points.String(), "$1$2"), p.Hourly, p.Daily, p.Weekly)
}

// zeros matches the zero minutes and seconds at the end of a duration.
var zeros = regexp.MustCompile(`(h)0m0s$|(m)0s$`)
