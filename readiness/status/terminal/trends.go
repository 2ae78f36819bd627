package terminal

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/readiness/status"
)

// trends are the series of the last hours, a line each: how it went, how it is, and how high it has been.
func trends(t *status.Trends) string {
	covers := time.Duration(float64(len(t.Write)) * t.Interval * float64(time.Second))
	rows := [][]string{}
	for _, series := range []struct {
		name   string
		points status.Points
		text   func(float64) string
	}{
		{"writes", t.Write, ofSeconds},
		{"reads", t.Read, ofSeconds},
		{"log fsync p99", t.Fsync, ofSeconds},
		{"database", t.DBSize, ofBytes},
		{"in use", t.DBInUse, ofBytes},
		{"backup lag", t.BackupLag, ofSeconds},
		{"revisions", t.Revisions, perSecond},
	} {
		measured := slices.DeleteFunc(slices.Clone(series.points), isMissing)
		if len(measured) > 0 {
			now, highest := float64(measured[len(measured)-1]), float64(slices.Max(measured))
			rows = append(rows, []string{"  " + series.name, bars(series.points), series.text(now) + ", max " + series.text(highest)})
		}
	}
	return fmt.Sprintf("the last %v\n", Rounded(covers)) + Table(rows...)
}

func isMissing(point float32) bool { return math.IsNaN(float64(point)) }

// lineWidth is how many columns the points of a series take at most.
const lineWidth = 40

// bars draws points, of which one is measured, from nothing to the highest; several share a column, which is as high as the highest of them.
func bars(points status.Points) string {
	highest := slices.Max(slices.DeleteFunc(slices.Clone(points), isMissing))
	var b strings.Builder
	for group := range slices.Chunk(points, (len(points)+lineWidth-1)/lineWidth) {
		switch measured := slices.DeleteFunc(slices.Clone(group), isMissing); {
		case len(measured) == 0:
			b.WriteByte(' ')
		case highest <= 0:
			b.WriteRune('▁')
		default:
			b.WriteRune([]rune("▁▂▃▄▅▆▇█")[int(7*(slices.Max(measured)/highest))])
		}
	}
	return b.String()
}

// ofBytes makes up for the digits that points lack.
func ofBytes(v float64) string { return Size(int64(math.Round(v/1024)) * 1024) }

// ofSeconds is a duration in seconds, with three digits.
func ofSeconds(v float64) string {
	d := time.Duration(v * float64(time.Second))
	for unit := time.Microsecond; unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return Rounded(d).String()
}

func perSecond(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.3g/s", v)
}
