package archive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Errors for errors.Is, in addition to those of packages store and format: store.ErrNotFound for a missing object,
// format.ErrDamaged and format.ErrUntrusted for one that cannot be verified. The message names the object.
var (
	// ErrForeign reports that something belongs to another cluster.
	ErrForeign = errors.New("another cluster's")
	// ErrNotKept reports that a target cannot be restored; the message lists what can.
	ErrNotKept = errors.New("not kept")
	// ErrHole reports that segments do not follow one another.
	ErrHole = errors.New("the chain has a hole")
	// ErrNameless reports that the newest generation has backups and no generation.json. Continuing from the
	// generation before would lose them. It wraps format.ErrDamaged.
	ErrNameless = fmt.Errorf("%w: it is missing, although there are backups below it", format.ErrDamaged)
	// ErrUnsigned reports that the backups are signed, and that this process has no key to sign with: readers that
	// require signatures would stop at its first object.
	ErrUnsigned = errors.New("signed, and what this process writes would not be, as --backup-signing-key is not given")
)

// NotVerified reports whether the content that was read is wrong, as opposed to reading having failed.
func NotVerified(err error) bool {
	return errors.Is(err, format.ErrDamaged) || errors.Is(err, format.ErrUntrusted) || errors.Is(err, ErrForeign)
}

// Unusable reports whether an object is missing, cannot be verified, or has parts that do not follow one another.
// Other errors mean that it could not be read.
func Unusable(err error) bool {
	return NotVerified(err) || errors.Is(err, ErrHole) || errors.Is(err, store.ErrNotFound)
}

// An Archive reads and writes the backups in a store.
type Archive struct {
	*Reader
	*Writer
}

// New returns the archive in a store. It makes no request.
func New(s store.Store, keys *format.Keys) *Archive {
	known, _ := lru.New[string, lastRead](maxCached) // fails only for sizes below 1
	recent, _ := lru.New[string, []byte](maxRecent)
	reader := &Reader{store: s, keys: keys, cache: known}
	return &Archive{Reader: reader, Writer: &Writer{reader, recent}}
}

// A Reader reads the backups in a store. Its methods make requests, and may be called from any goroutine.
type Reader struct {
	store store.Store
	keys  *format.Keys
	cache *lru.Cache[string, lastRead]

	endings sync.Map // of the generations that were seen to have ended
}

// Store returns the store that holds the archive.
func (r *Reader) Store() store.Store { return r.store }

// Keys returns the keys that statements are signed, and data encrypted, with.
func (r *Reader) Keys() *format.Keys { return r.keys }

// String returns the store's URL.
func (r *Reader) String() string { return r.store.String() }

// A Writer creates the objects of an archive. It creates each name once and deletes nothing.
type Writer struct {
	reader *Reader
	recent *lru.Cache[string, []byte] // segments that this process has stored
}

// readStatement reads an object that consists of a statement, and returns its line.
func (r *Reader) readStatement(ctx context.Context, name, kind string, into any) ([]byte, error) {
	content, err := r.store.Get(ctx, name, 0, format.MaxLine+1)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	buffered := bufio.NewReader(content)
	line, err := format.ReadLine(buffered)
	if format.Ended(err) {
		err = fmt.Errorf("%w: it is empty", format.ErrDamaged)
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

// putStatement creates an object that consists of a statement.
func (w *Writer) putStatement(ctx context.Context, name string, statement any) error {
	line, err := w.reader.keys.Sign(statement)
	if err != nil {
		return fmt.Errorf("cannot sign %s: %w", name, err)
	}
	_, err = store.PutOnce(ctx, w.reader.store, name, bytes.NewReader(line))
	return err
}

// newHeading returns the heading of a statement.
func newHeading(kind string) format.Heading { return format.Heading{Format: format.Format, Kind: kind} }

// wrapName adds the name of the object to an error.
func (r *Reader) wrapName(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", name, r.store, err)
}

// damagedError reports that the content of an object does not match its name.
func (r *Reader) damagedError(name string) error {
	return r.wrapName(name, fmt.Errorf("%w: it is not what its name says", format.ErrDamaged))
}

// foreignError reports that an object belongs to another cluster.
func (r *Reader) foreignError(name, of, instead string) error {
	return fmt.Errorf("%s in %s is %w: of cluster %s instead of %s", name, r.store, ErrForeign, of, instead)
}

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

// contains reports whether a merged object covers a position.
func (o Object) contains(position format.Position) bool {
	return o.Start.Compare(position) <= 0 && o.Next.Compare(position) > 0
}

// Objects lists the objects of a level, by their first positions.
func (r *Reader) Objects(ctx context.Context, generation int, level Level) (all []Object, err error) {
	prefix := levelPrefix(generation, level)
	for listed, err := range r.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		start, next, err := parseObject(level, strings.TrimPrefix(listed.Name, prefix))
		if err != nil {
			continue // not one of ours
		}
		all = append(all, Object{
			Level: level, Generation: generation, Start: start, Next: next, Size: listed.Size, Modified: listed.Modified,
		})
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

// parseObject parses the part of an object's name that follows the prefix of its level.
func parseObject(level Level, name string) (start, next format.Position, err error) {
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
