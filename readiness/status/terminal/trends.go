package terminal

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/readiness/status"
)

// trends returns a line for each series of the last hours, with the latest and the highest value.
func (p *Printer) trends(t *status.Trends) string {
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
			rows = append(rows, []string{"  " + series.name, sparkline(series.points), series.text(now) + ", max " + series.text(highest)})
		}
	}
	return fmt.Sprintf("the last %v\n", Round(covers)) + p.table(rows...)
}

func isMissing(point float32) bool { return math.IsNaN(float64(point)) }

const (
	lineWidth = 40 // columns of a series, max
	barWidth  = 30 // columns of a progress bar
)

// sparkline draws a series from 0 up. Points that share a column are drawn as the highest of them. One point at least is measured.
func sparkline(points status.Points) string {
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

// ofBytes formats bytes. Points have four digits, so it rounds to KiB.
func ofBytes(v float64) string { return Size(int64(math.Round(v/1024)) * 1024) }

// ofSeconds formats seconds with three digits.
func ofSeconds(v float64) string {
	d := time.Duration(v * float64(time.Second))
	for unit := time.Microsecond; unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return Round(d).String()
}

func perSecond(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.3g/s", v)
}
