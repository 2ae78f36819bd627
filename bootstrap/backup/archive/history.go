package archive

import (
	"context"
	"time"

	"etcd-wrapper/bootstrap/backup/segment"
)

// History is what is kept.
type History struct {
	Cluster     *Cluster // nil if nothing was ever kept here
	Generations []Generational
}

// Generational is what is kept of a generation.
type Generational struct {
	Generation
	Fulls   []KeptFull // oldest first
	Objects []Object   // that hold segments, of all levels, by their first position
	Chains  []Chain    // oldest first
	Orphans []string   // names of objects below full/ without a manifest: of fulls that are being made, or never became any
}

// KeptFull is a full of a listing.
type KeptFull struct {
	Full
	Label   string    // its name, also when the manifest cannot be read
	Size    int64     // of its objects, bytes
	Stored  time.Time // when its manifest was created, by the store's clock
	Verdict *Verdict  // the newest; nil if there is none
	Err     error     // why its manifest is not believed; Full is then empty
}

// Usable tells whether a restore may begin with it: its manifest is believed, and no test restore of it failed.
func (f KeptFull) Usable() bool {
	return f.Err == nil && (f.Verdict == nil || f.Verdict.Outcome != Failed)
}

// Chain is a range of revisions that can all be restored: fulls and segments without a hole.
type Chain struct {
	Fulls   []KeptFull // that a restore may begin with, oldest first; at least one
	Objects []Object   // to read behind the first full: the largest that there are
	From    int64      // the first full's revision
	To      int64      // the last revision that is kept
	Begin   time.Time  // when From was the present
	End     time.Time  // when To was the present, as far as is known
}

// History lists everything. It reads the manifests and verdicts of fulls, but not those of segments, save the last of each
// chain.
func (a *Archive) History(ctx context.Context) (*History, error) { return nil, errUnfinished }

// Newest returns the generation that was begun last; nil if there is none.
func (h *History) Newest() *Generational {
	if len(h.Generations) == 0 {
		return nil
	}
	return &h.Generations[len(h.Generations)-1]
}

// Target is what to go back to. With neither revision nor time it is the latest there is.
type Target struct {
	Revision   int64     // 0 if it is not asked for
	Time       time.Time // the last revision that there was at that time; zero if it is not asked for
	Generation int       // 0 means the newest that has it
}

// Path is how to get to a revision.
type Path struct {
	Generation Generation
	Full       Full
	Objects    []Object  // to read behind it, in order; none if the full is all
	Revision   int64     // no row beyond it is read
	Time       time.Time // when it was the present, as far as is known

	// Fetched is told of bytes of objects as they are read by Read, if it is not nil. Whoever reads sets it.
	Fetched func(bytes int)

	objects []Object // all that there are, in case one of Objects is not what its name promises
}

// Bytes is how much there is to read, in bytes.
func (p Path) Bytes() int64 {
	sum := p.Full.Data.Bytes
	for _, object := range p.Objects {
		sum += object.Size
	}
	return sum
}

// Find finds how to get to a target. ErrNotKept says that it isn't kept, and what is.
func (a *Archive) Find(ctx context.Context, target Target) (Path, error) {
	return Path{}, errUnfinished
}

// Reading is what was read on a path.
type Reading struct {
	Revision  int64                    // of the last row, or the full's
	Chain     segment.Digest           // at the end of the last segment
	Buckets   []*segment.Bucket        // that changed since the full, as of the last segment that ends at or before the path's revision
	Compacted int64                    // etcd's scheduled compaction there; the full's if there was no segment
	Hashes    []segment.CompactionHash // of compactions, oldest first
	Rows      int64
	Bytes     int64 // of the objects
}

// Read reads the rows behind a path's full, in order, up to its revision, and gives each to row, which must not keep it. It
// checks that they are what was written, all of it, and nothing else; what was read before an error counts for nothing.
// An error of row comes through.
func (a *Archive) Read(ctx context.Context, path Path, row func(segment.Row) error) (Reading, error) {
	return Reading{}, errUnfinished
}
