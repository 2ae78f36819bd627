package archive

import (
	"fmt"
	"time"

	"etcd-wrapper/bootstrap/backup/segment"
)

// second is the form of times in names, UTC.
const second = "20060102T150405Z"

const (
	clusterName       = "cluster.json"
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
func GenerationPrefix(generation int) string { return fmt.Sprintf("gen/%06d/", generation) }

// SegmentName is the name of the segment that begins at a position.
func SegmentName(generation int, position segment.Position) string {
	return GenerationPrefix(generation) + "segment/" + position.String()
}

// MergedName is the name of merged segments, from a position up to but not including next.
func MergedName(generation int, level Level, position, next segment.Position) string {
	return GenerationPrefix(generation) + string(level) + "/" + position.String() + "_" + next.String()
}

// FullName names a full within its generation.
func FullName(revision int64, at time.Time) string {
	return fmt.Sprintf("%019d-%s", revision, at.UTC().Format(second))
}

func fullPrefix(generation int) string { return GenerationPrefix(generation) + "full/" }

// DataName and ManifestName are the names of the two objects of a full. The manifest comes last when it is made, and goes first
// when it is deleted.
func DataName(generation int, full string) string { return fullPrefix(generation) + full + "/data" }

// ManifestName is the name of a full's manifest.
func ManifestName(generation int, full string) string {
	return fullPrefix(generation) + full + "/manifest.json"
}
