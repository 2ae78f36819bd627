package archive

import (
	"context"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
)

// nameTime is the layout of times in names, in UTC.
const nameTime = "20060102T150405Z"

// ClusterName is the name of the cluster manifest.
const ClusterName = "cluster.json"

const (
	generationsPrefix = "gen/"
	reservationPrefix = "reservation/"
)

// A Level is a step of merging.
type Level string

// The levels, by the time that one object covers.
const (
	Segment Level = "segment" // one --backup-interval
	Minute  Level = "minute"
	Hour    Level = "hour"
)

// An Object holds one segment or several.
type Object struct {
	Level      Level
	Generation int
	Start      format.Position
	Next       format.Position // position of the next object; zero for a Segment whose manifest was not read
	Size       int64           // bytes
	Modified   time.Time       // time of creation, by the store's clock
}

// Name returns the name of the object in the store.
func (o Object) Name() string {
	if o.Level == Segment {
		return SegmentName(o.Generation, o.Start)
	}
	return levelPrefix(o.Generation, o.Level) + o.Start.String() + "_" + o.Next.String()
}

// NamedEnd returns the position after an object, as far as its name shows it: a segment may extend further.
func (o Object) NamedEnd() format.Position {
	if o.Level == Segment {
		return format.Position{Revision: o.Start.Revision, Part: o.Start.Part + 1}
	}
	return o.Next
}

// contains reports whether a merged object covers a position.
func (o Object) contains(position format.Position) bool {
	return o.Start.Compare(position) <= 0 && o.Next.Compare(position) > 0
}

// Objects lists the objects of levels, or of all levels, each by their first positions. Levels are listed in the order in
// which objects are merged, so that none is missed.
func (r *objectStore) Objects(ctx context.Context, generation int, levels ...Level) (all []Object, err error) {
	if len(levels) == 0 {
		levels = []Level{Segment, Minute, Hour}
	}
	for _, level := range levels {
		prefix := levelPrefix(generation, level)
		for listed, err := range r.store.List(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			start, next, err := ParseObject(level, strings.TrimPrefix(listed.Name, prefix))
			if err != nil {
				continue // not one of ours
			}
			all = append(all, Object{
				Level: level, Generation: generation, Start: start, Next: next, Size: listed.Size, Modified: listed.Modified,
			})
		}
	}
	return all, nil
}

// GenerationPrefix returns the prefix of all names of a generation.
func GenerationPrefix(generation int) string {
	return fmt.Sprintf("%s%06d/", generationsPrefix, generation)
}

func generationName(generation int) string { return GenerationPrefix(generation) + "generation.json" }

// SegmentName returns the name of the segment at a position.
func SegmentName(generation int, position format.Position) string {
	return levelPrefix(generation, Segment) + position.String()
}

func levelPrefix(generation int, level Level) string {
	return GenerationPrefix(generation) + string(level) + "/"
}

// ParseObject parses the part of an object's name that follows the prefix of its level.
func ParseObject(level Level, name string) (start, next format.Position, err error) {
	if level == Segment {
		start, err = format.ParsePosition(name)
		return start, next, err
	}
	first, second, _ := strings.Cut(name, "_")
	if start, err = format.ParsePosition(first); err == nil {
		next, err = format.ParsePosition(second)
	}
	if err == nil && next.Compare(start) <= 0 {
		err = fmt.Errorf("%q ends before it starts", name)
	}
	return start, next, err
}

// FullName returns the name of a full snapshot within its generation.
func FullName(revision int64, at time.Time) string {
	return fmt.Sprintf("%019d-%s", revision, at.UTC().Format(nameTime))
}

// ParseFullName parses the result of FullName. With an error the time is zero, which counts as the oldest.
func ParseFullName(name string) (revision int64, at time.Time, err error) {
	number, stamp, _ := strings.Cut(name, "-")
	if _, err = fmt.Sscanf(number, "%d", &revision); err == nil {
		at, err = time.Parse(nameTime, stamp)
	}
	if err != nil || FullName(revision, at) != name {
		return 0, time.Time{}, fmt.Errorf("%q is not the name of a full snapshot", name)
	}
	return revision, at, nil
}

func fullPrefix(generation int) string { return GenerationPrefix(generation) + "full/" }

// DataName returns the name of the data object of a full snapshot.
func DataName(generation int, full string) string { return fullPrefix(generation) + full + "/data" }

// ManifestName returns the name of the manifest of a full snapshot. It is created last and deleted first.
func ManifestName(generation int, full string) string {
	return fullPrefix(generation) + full + "/manifest.json"
}

func resultPrefix(generation int) string { return GenerationPrefix(generation) + "verified/" }

func testPrefix(generation int) string { return GenerationPrefix(generation) + "tested/" }
