package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Errors for use with errors.Is. The package also returns store.ErrNotFound for a missing object, and
// format.ErrDamaged or format.ErrUntrusted for an object that cannot be verified. Error messages contain the object
// name.
var (
	// ErrForeign reports that an object belongs to another cluster.
	ErrForeign = errors.New("cluster ID mismatch")
	// ErrNotKept reports that a target cannot be restored. The message describes the restore points that are
	// available.
	ErrNotKept = errors.New("not available")
	// ErrHole reports that segments are not contiguous.
	ErrHole = errors.New("gap in the chain")
	// ErrNameless reports that the newest generation has backups but no generation.json. Continuing from the previous
	// generation would lose these backups. ErrNameless wraps format.ErrDamaged.
	ErrNameless = fmt.Errorf("%w: generation.json is missing, but the generation has backups", format.ErrDamaged)
	// ErrUnsigned reports that the backups are signed but this process has no signing key. Readers that require
	// signatures would stop at the first object that this process writes.
	ErrUnsigned = errors.New("the backups are signed, but --backup-signing-key is not set")
)

// NotVerified reports whether err means that the content of an object is invalid, rather than that the object could
// not be read.
func NotVerified(err error) bool {
	return errors.Is(err, format.ErrDamaged) || errors.Is(err, format.ErrUntrusted) || errors.Is(err, ErrForeign)
}

// Unusable reports whether err means that an object is missing, cannot be verified, or is not contiguous. Any other
// error means that the object could not be read.
func Unusable(err error) bool {
	return NotVerified(err) || errors.Is(err, ErrHole) || errors.Is(err, store.ErrNotFound)
}

// An Archive reads and writes the backups in a store. An Archive never overwrites an object and only deletes segments
// that were stored too late.
type Archive struct{ *Reader }

// New returns the archive in a store without accessing the store.
func New(s store.Store, keys *format.Keys) *Archive {
	known, _ := lru.New[string, lastRead](maxCached) // fails only if the size is less than 1
	return &Archive{&Reader{objectStore: objectStore{s, keys, known}}}
}

// A Reader reads the backups in a store. Reader methods send requests to the store and are safe for concurrent use.
type Reader struct {
	objectStore
	endings sync.Map // generations known to have ended
}

// An objectStore reads individual objects from an archive.
type objectStore struct {
	store store.Store
	keys  *format.Keys
	cache *lru.Cache[string, lastRead]
}

// Store returns the store that holds the archive.
func (r *objectStore) Store() store.Store { return r.store }

// Keys returns the keys for signing and encryption.
func (r *objectStore) Keys() *format.Keys { return r.keys }

// String returns the URL of the store.
func (r *objectStore) String() string { return r.store.String() }

// readStatement reads an object that consists of a single statement and returns the line.
func (r *objectStore) readStatement(ctx context.Context, name, kind string, into any) ([]byte, error) {
	content, err := r.store.Get(ctx, name, 0, format.MaxLine+1)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	buffered := bufio.NewReader(content)
	line, err := format.ReadLine(buffered)
	if format.Ended(err) {
		err = fmt.Errorf("%w: the object is empty", format.ErrDamaged)
	}
	if err == nil {
		err = r.keys.Check(line, kind, into)
	}
	if err == nil {
		if _, more := buffered.ReadByte(); !format.Ended(more) {
			err = errors.Join(more, format.ErrDamaged)
		}
	}
	return line, r.wrapName(name, err)
}

// putStatement creates an object that consists of a single statement.
func (a *Archive) putStatement(ctx context.Context, name string, statement any) error {
	line, err := a.keys.Sign(statement)
	if err != nil {
		return fmt.Errorf("cannot sign %s: %w", name, err)
	}
	_, err = store.PutOnce(ctx, a.store, name, bytes.NewReader(line))
	return err
}

// newHeader returns the heading of a statement of the given kind.
func newHeader(kind string) format.Heading { return format.Heading{Format: format.Format, Kind: kind} }

// wrapName adds the object name to an error.
func (r *objectStore) wrapName(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", name, r.store, err)
}

// mismatchError reports that the content of an object does not match its name.
func (r *objectStore) mismatchError(name string) error {
	return r.wrapName(name, fmt.Errorf("%w: the content does not match the object name", format.ErrDamaged))
}

// otherClusterError reports that an object belongs to another cluster.
func (r *objectStore) otherClusterError(name, found, expected string) error {
	return fmt.Errorf("%s in %s: %w: found %s, expected %s", name, r.store, ErrForeign, found, expected)
}

// selectError returns the first error that is not nil, but prefers format.ErrUntrusted: an untrusted object may be
// intact, so trusting its key may be enough to restore it.
func selectError(a, b error) error {
	if errors.Is(b, format.ErrUntrusted) && !errors.Is(a, format.ErrUntrusted) {
		return b
	}
	return cmp.Or(a, b)
}

// MaxTime returns the later of two times.
func MaxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A Fault is an error caused by an object that is missing or cannot be verified.
type Fault struct {
	Object string          // object name; empty if no object starts at From
	From   format.Position // first position that cannot be read; zero if the full snapshot itself cannot be read
	Err    error
}

// Error implements error.
func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// asFault wraps err in a Fault if err means that the object is unusable.
func asFault(err error, object string, from format.Position) error {
	if Unusable(err) {
		return &Fault{Object: object, From: from, Err: err}
	}
	return err
}

// A faultList lists objects that a path must avoid.
type faultList []*Fault

// add returns the list with the fault added, and false if the list already contains the fault.
func (f faultList) add(fault *Fault) (faultList, bool) {
	known := slices.ContainsFunc(f, func(o *Fault) bool { return o.Object == fault.Object && o.From == fault.From })
	return append(slices.Clone(f), fault), !known
}

// errorOf returns why an object is unusable, or nil if the object is not in the list.
func (f faultList) errorOf(object string) error {
	if i := slices.IndexFunc(f, func(o *Fault) bool { return o.Object == object }); i >= 0 {
		return f[i].Err
	}
	return nil
}

// Origin is the next position of a generation without full snapshots. If such a generation ends, the end marker is
// stored at this position.
var Origin = format.Position{Revision: 1}

// A lastRead caches the last manifest of an object, or the error from verifying the object. If an object is replaced,
// its size or time changes, so the cached result is not used.
type lastRead struct {
	manifest *format.Manifest
	err      error
}

// maxCached limits the number of cached manifests.
const maxCached = 1 << 15

// maxParallel limits the number of manifests that are read in parallel.
const maxParallel = 8

// forEach calls do for each index from 0 to n-1 with limited parallelism and returns the first error.
func forEach(n int, do func(int) error) error {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// nameTime is the layout of UTC times in object names.
const nameTime = "20060102T150405Z"

// ClusterName is the name of the cluster manifest.
const ClusterName = "cluster.json"

const (
	generationsPrefix = "gen/"
	reservationPrefix = "reservation/"
)

// A Level determines the size of an object: a single segment, or the merged segments of a minute or an hour.
type Level string

// Merge levels, ordered by the time span that an object covers.
const (
	Segment Level = "segment" // covers one --backup-interval
	Minute  Level = "minute"
	Hour    Level = "hour"
)

// An Object contains one or more segments.
type Object struct {
	Level      Level
	Generation int
	Start      format.Position
	Next       format.Position // position of the next object; zero for a Segment whose manifest has not been read
	Size       int64           // bytes
	Modified   time.Time       // creation time according to the store's clock
}

// Name returns the name of the object in the store.
func (o Object) Name() string {
	if o.Level == Segment {
		return SegmentName(o.Generation, o.Start)
	}
	return levelPrefix(o.Generation, o.Level) + o.Start.String() + "_" + o.Next.String()
}

// hasNameOf reports whether two objects have the same name, without formatting the names.
func (o Object) hasNameOf(other Object) bool {
	return o.Level == other.Level && o.Generation == other.Generation && o.Start == other.Start && o.NamedEnd() == other.NamedEnd()
}

// NamedEnd returns the position after an object according to its name. For a segment, NamedEnd returns the lowest
// possible position, because a segment's name does not include its end.
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

// Objects lists the objects of the given levels, or of all levels if none are given. Each level is sorted by start
// position. Segments are listed first and hours last, so an object that is merged during the listing is not missed.
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
				continue // not an object of an archive, but created by another program
			}
			all = append(all, Object{
				Level: level, Generation: generation, Start: start, Next: next, Size: listed.Size, Modified: listed.Modified,
			})
		}
	}
	return all, nil
}

// GenerationPrefix returns the common prefix of the object names in a generation.
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

// ParseObject parses the part of an object name that follows the level prefix.
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
		err = fmt.Errorf("invalid object name %q: the end must be after the start", name)
	}
	return start, next, err
}

// FullName returns the name of a full snapshot within its generation.
func FullName(revision int64, at time.Time) string {
	return fmt.Sprintf("%019d-%s", revision, at.UTC().Format(nameTime))
}

// ParseFullName parses a name returned by FullName. If the name is invalid, the returned time is zero.
func ParseFullName(name string) (revision int64, at time.Time, err error) {
	number, stamp, _ := strings.Cut(name, "-")
	if _, err = fmt.Sscanf(number, "%d", &revision); err == nil {
		at, err = time.Parse(nameTime, stamp)
	}
	if err != nil || FullName(revision, at) != name {
		return 0, time.Time{}, fmt.Errorf("invalid full snapshot name %q", name)
	}
	return revision, at, nil
}

func fullPrefix(generation int) string { return GenerationPrefix(generation) + "full/" }

// DataName returns the object name of a full snapshot's data.
func DataName(generation int, full string) string { return fullPrefix(generation) + full + "/data" }

// ManifestName returns the object name of a full snapshot's manifest. The manifest is created last and deleted first.
func ManifestName(generation int, full string) string {
	return fullPrefix(generation) + full + "/manifest.json"
}

func resultPrefix(generation int) string { return GenerationPrefix(generation) + "verified/" }

func testPrefix(generation int) string { return GenerationPrefix(generation) + "tested/" }
