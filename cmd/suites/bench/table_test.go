//go:build bench

package bench_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A series contains the repeated measurements of one value.
type series []float64

func (s series) rank(share float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

func (s series) median() float64 { return s.rank(0.5) }

func (s series) least() float64 { return s.rank(0) }

// A row is a row of the results table. plain contains the values of plain etcd or of another reference that the title
// names, and is empty if there is nothing to compare the wrapper with.
type row struct {
	what    string
	plain   series
	wrapper series
	target  string
	met     bool
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// table returns the results as a Markdown table, as in docs/benchmarks.md.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| measurement | plain etcd, median (min) | wrapper, median (min) | ratio | target | met |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.what, r.plain, r.wrapper, r.ratio(), r.target, r.result())
	}
	return b.String()
}

func (s series) String() string {
	switch len(s) {
	case 0:
		return "–"
	case 1:
		return short(s[0])
	default:
		return fmt.Sprintf("%s (%s)", short(s.median()), short(s.least()))
	}
}

func short(value float64) string {
	if value >= 100 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

func (r row) ratio() string {
	if len(r.plain) == 0 || r.plain.least() == 0 { // there is no value to divide by
		return "–"
	}
	return fmt.Sprintf("%.2f", r.paired())
}

// paired returns the median of the ratios of wrapper to plain, each calculated from two values that were measured one
// after the other.
func (r row) paired() float64 {
	ratios := make(series, len(r.plain))
	for i := range ratios {
		ratios[i] = r.wrapper[i] / r.plain[i]
	}
	return ratios.median()
}

func (r row) result() string {
	switch {
	case r.target == "":
		return ""
	case r.met:
		return "yes"
	default:
		return "**no**"
	}
}

// costsAtMost limits how much the wrapper's lowest value may exceed plain etcd's lowest value. The lowest values are
// compared because other load on the machine affects them least.
func (r row) costsAtMost(extra float64, unit string) row {
	r.target = fmt.Sprintf("min ≤ plain's min + %s %s", short(extra), unit)
	r.met = r.wrapper.least()-r.plain.least() <= extra
	return r
}

// atMost limits the wrapper's median.
func (r row) atMost(limit float64, unit string) row {
	r.target = fmt.Sprintf("≤ %s %s", short(limit), unit)
	r.met = r.wrapper.median() <= limit
	return r
}

// neverMoreThan limits the wrapper's maximum.
func (r row) neverMoreThan(limit float64, unit string) row {
	r.target = fmt.Sprintf("max ≤ %s %s", short(limit), unit)
	r.met = r.wrapper.rank(1) <= limit
	return r
}

// shareAtLeast sets a lower limit on the ratio to plain etcd, for rows in which higher values are better.
func (r row) shareAtLeast(share float64) row {
	r.target = fmt.Sprintf("≥ %.2f × plain", share)
	r.met = r.paired() >= share
	return r
}

// timesAtMost limits the ratio to the value in plain etcd's column, which other names.
func (r row) timesAtMost(factor float64, other string) row {
	r.target = fmt.Sprintf("≤ %s × %s", short(factor), other)
	r.met = r.paired() <= factor
	return r
}

// shareAtMost sets an upper limit on the ratio to plain etcd, for rows in which lower values are better.
func (r row) shareAtMost(share float64) row {
	r.target = fmt.Sprintf("≤ plain / %.2f", share)
	r.met = r.paired() <= 1/share
	return r
}
