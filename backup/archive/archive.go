// Package archive is how backups lie in a store: names, manifests, what was kept and how it is read back. It writes what it is
// given and deletes nothing; when to write, merge and delete is its callers' business.
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

// What can be wrong with an archive, for errors.Is, beside what packages store and seal say: store.ErrNotFound is an object
// that is missing, format.ErrDamaged and format.ErrUntrusted are what their names say, and the message names the object.
var (
	// ErrForeign says that something belongs to another cluster.
	ErrForeign = errors.New("another cluster's")
	// ErrNotKept says that there is no way to what was asked for; the message names what there is.
	ErrNotKept = errors.New("not kept")
	// ErrHole says that segments don't follow one another.
	ErrHole = errors.New("the chain has a hole")
	// ErrNameless says that the newest generation has backups, and its generation.json is gone: to go on from the one before would lose
	// all of them. It is a format.ErrDamaged.
	ErrNameless = fmt.Errorf("%w: it is missing, although there are backups below it", format.ErrDamaged)
	// ErrUnsigned says that the backups are signed, and that what this process would add is not: whoever trusts signatures alone could not
	// go on behind it.
	ErrUnsigned = errors.New("signed, and what this process writes would not be, as --backup-signing-key is not given")
)

// NotVerified tells whether it is something that was read which is wrong, and not the reading.
func NotVerified(err error) bool {
	return errors.Is(err, format.ErrDamaged) || errors.Is(err, format.ErrUntrusted) || errors.Is(err, ErrForeign)
}

// Unusable tells whether nothing can be made of an object: it is gone, what it says is not believed, or its parts don't follow one
// another. Other errors say that it could not be read.
func Unusable(err error) bool {
	return NotVerified(err) || errors.Is(err, ErrHole) || errors.Is(err, store.ErrNotFound)
}

// Archive is the backups in a store, for who reads and writes them. A History is what is kept there.
type Archive struct {
	*Reader
	*Writer
}

// New returns the archive in a store. It looks at nothing yet.
func New(s store.Store, keys *format.Keys) *Archive {
	known, _ := lru.New[string, seen](mostSeen) // which fails for sizes below 1 only
	reader := &Reader{store: s, keys: keys, seen: known}
	return &Archive{Reader: reader, Writer: &Writer{reader: reader}}
}

// Reader reads the backups in a store: statements, objects, and what they lead to. Its methods may be called from any goroutine that
// doesn't serve.
type Reader struct {
	store store.Store
	keys  *format.Keys
	seen  *lru.Cache[string, seen] // by all that a listing tells

	successors sync.Map // from the number of a generation that has ended to an endOf
}

// Store is where the archive lies.
func (r *Reader) Store() store.Store { return r.store }

// Keys are what it is sealed with.
func (r *Reader) Keys() *format.Keys { return r.keys }

// String names the place for people.
func (r *Reader) String() string { return r.store.String() }

// Writer puts backups into a store: what founds them, generations, fulls, segments, what was merged, results and reservations. It
// puts each object once, under a name that nobody else's has.
type Writer struct {
	reader  *Reader
	written written
}

// statement reads an object that is a statement, and returns the line that states it.
func (r *Reader) statement(ctx context.Context, name, kind string, into any) ([]byte, error) {
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
	return line, r.named(name, err)
}

// state stores an object that is a statement.
func (w *Writer) state(ctx context.Context, name string, statement any) error {
	line, err := w.reader.keys.Sign(statement)
	if err != nil {
		return fmt.Errorf("cannot sign %s: %w", name, err)
	}
	_, err = store.PutOnce(ctx, w.reader.store, name, bytes.NewReader(line))
	return err
}

// heading is that of a statement of a kind.
func heading(kind string) format.Heading { return format.Heading{Format: format.Format, Kind: kind} }

// named says which object an error is about.
func (r *Reader) named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", name, r.store, err)
}

// damaged says that an object doesn't state what its name does.
func (r *Reader) damaged(name string) error {
	return r.named(name, fmt.Errorf("%w: it is not what its name says", format.ErrDamaged))
}

// anothers says that an object is of a cluster where another one's should be.
func (r *Reader) anothers(name, of, instead string) error {
	return fmt.Errorf("%s in %s is %w: of cluster %s instead of %s", name, r.store, ErrForeign, of, instead)
}

// second is the form of times in names, UTC.
const second = "20060102T150405Z"

// ClusterName is the object that says whose the store is.
const ClusterName = "cluster.json"

const (
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

// Object is one that holds segments.
type Object struct {
	Level      Level
	Generation int
	Start      format.Position
	Next       format.Position // where the object behind it begins; zero for a Segment, unless Examined has read it in its manifest
	Size       int64           // bytes
	Modified   time.Time       // when it was created, by the store's clock
}

// Name is that of the object.
func (o Object) Name() string {
	if o.Level == Segment {
		return SegmentName(o.Generation, o.Start)
	}
	return levelPrefix(o.Generation, o.Level) + o.Start.String() + "_" + o.Next.String()
}

// covers tells whether a merged object holds what begins at a position.
func (o Object) covers(position format.Position) bool {
	return o.Start.Compare(position) <= 0 && o.Next.Compare(position) > 0
}

// Objects lists those of a level whose first position is not before from, in order.
func (r *Reader) Objects(ctx context.Context, generation int, level Level, from format.Position) (all []Object, err error) {
	prefix := levelPrefix(generation, level)
	after := ""
	if from.Revision > 0 {
		after = prefix + fmt.Sprintf("%019d", from.Revision) // before all names that begin so
	}
	for listed, err := range r.store.List(ctx, prefix, after) {
		if err != nil {
			return nil, err
		}
		start, next, err := parseObject(level, strings.TrimPrefix(listed.Name, prefix))
		if err != nil || start.Compare(from) < 0 {
			continue // somebody else's, or before
		}
		all = append(all, Object{
			Level: level, Generation: generation, Start: start, Next: next, Size: listed.Size, Modified: listed.Modified,
		})
	}
	return all, nil
}

// GenerationPrefix is how names of everything in a generation begin.
func GenerationPrefix(generation int) string {
	return fmt.Sprintf("%s%06d/", generationsPrefix, generation)
}

func generationName(generation int) string { return GenerationPrefix(generation) + "generation.json" }

// SegmentName is the name of the segment that begins at a position.
func SegmentName(generation int, position format.Position) string {
	return levelPrefix(generation, Segment) + position.String()
}

func levelPrefix(generation int, level Level) string {
	return GenerationPrefix(generation) + string(level) + "/"
}

// parseObject reads the name of an object behind its level's prefix.
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
		err = fmt.Errorf("%q ends before it begins", name)
	}
	return start, next, err
}

// FullName names a full within its generation.
func FullName(revision int64, at time.Time) string {
	return fmt.Sprintf("%019d-%s", revision, at.UTC().Format(second))
}

// ParseFullName undoes FullName. After an error the time is zero: such a name is as old as can be.
func ParseFullName(name string) (revision int64, at time.Time, err error) {
	number, stamp, _ := strings.Cut(name, "-")
	if _, err = fmt.Sscanf(number, "%d", &revision); err == nil {
		at, err = time.Parse(second, stamp)
	}
	if err != nil || FullName(revision, at) != name {
		return 0, time.Time{}, fmt.Errorf("%q is not the name of a full", name)
	}
	return revision, at, nil
}

func fullPrefix(generation int) string { return GenerationPrefix(generation) + "full/" }

// DataName is the name of a full's data, and of nothing but that.
func DataName(generation int, full string) string { return fullPrefix(generation) + full + "/data" }

// ManifestName is the name of a full's manifest. It comes last when a full is made, and goes first when one is deleted.
func ManifestName(generation int, full string) string {
	return fullPrefix(generation) + full + "/manifest.json"
}

func resultPrefix(generation int) string { return GenerationPrefix(generation) + "verified/" }

func testPrefix(generation int) string { return GenerationPrefix(generation) + "tested/" }
