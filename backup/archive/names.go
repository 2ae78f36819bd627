package archive

import (
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/format/segment"
)

// second is the form of times in names, UTC.
const second = "20060102T150405Z"

const (
	clusterName       = "cluster.json"
	generationsPrefix = "gen/"
	reservationPrefix = "reservation/"
)

// Level is how far segments were merged.
type Level string

// The levels, by what one object covers.
const (
	Segment Level = "segment" // one interval
	Minute  Level = "minute"
	Hour    Level = "hour"
)

// GenerationPrefix is how names of everything in a generation begin.
func GenerationPrefix(generation int) string {
	return fmt.Sprintf("%s%06d/", generationsPrefix, generation)
}

func generationName(generation int) string { return GenerationPrefix(generation) + "generation.json" }

// SegmentName is the name of the segment that begins at a position.
func SegmentName(generation int, position segment.Position) string {
	return levelPrefix(generation, Segment) + position.String()
}

// mergedName is the name of merged segments, from a position up to but not including next.
func mergedName(generation int, level Level, position, next segment.Position) string {
	return levelPrefix(generation, level) + position.String() + "_" + next.String()
}

func levelPrefix(generation int, level Level) string {
	return GenerationPrefix(generation) + string(level) + "/"
}

// parseObject reads the name of an object behind its level's prefix.
func parseObject(level Level, name string) (start, next segment.Position, err error) {
	if level == Segment {
		start, err = segment.ParsePosition(name)
		return start, next, err
	}
	first, second, _ := strings.Cut(name, "_")
	if start, err = segment.ParsePosition(first); err == nil {
		next, err = segment.ParsePosition(second)
	}
	if err == nil && next.Compare(start) <= 0 {
		err = fmt.Errorf("%q ends before it begins", name)
	}
	return start, next, err
}

// FullName names a full within its generation.
func FullName(revision int64, at time.Time) string {
	return fmt.Sprintf("%019d-%s", revision, at.UTC().Format(second))
}

// parseFull reads the name of a full.
func parseFull(name string) (revision int64, at time.Time, err error) {
	number, stamp, _ := strings.Cut(name, "-")
	if _, err = fmt.Sscanf(number, "%d", &revision); err == nil {
		at, err = time.Parse(second, stamp)
	}
	if err == nil && FullName(revision, at) != name {
		err = fmt.Errorf("%q is not the name of a full", name)
	}
	return revision, at, err
}

func fullPrefix(generation int) string { return GenerationPrefix(generation) + "full/" }

// DataName is the name of a full's data, and of nothing but that.
func DataName(generation int, full string) string { return fullPrefix(generation) + full + "/data" }

// ManifestName is the name of a full's manifest. It comes last when a full is made, and goes first when one is deleted.
func ManifestName(generation int, full string) string {
	return fullPrefix(generation) + full + "/manifest.json"
}

func verdictPrefix(generation int) string { return GenerationPrefix(generation) + "verified/" }

func drillPrefix(generation int) string { return GenerationPrefix(generation) + "drill/" }
