// Package sidecarstore reads backups made by the sidecar, etcd-backup-restore, from an object store. A full snapshot
// is an etcd snapshot, and a delta contains the events of a watch. From a full snapshot and the deltas that follow
// it, a restore can build the database at any later revision that the deltas cover, by adding the rows from the
// deltas to the snapshot's key bucket.
//
// Object names have the following format:
//
//	[v1/|v2/][Backup-<seconds>/]Full-<first>-<last>-<seconds>[.gz|.zlib|.Z][.final]   a snapshot of etcd and its SHA-256
//	[v1/|v2/][Backup-<seconds>/]Incr-<first>-<last>-<seconds>[.gz|.zlib|.Z]           a JSON array of events and its SHA-256
//
// The seconds are Unix time. All other objects are ignored, including numbered upload chunks, which stores merge into
// the object itself, and objects in deeper directories, which may belong to another cluster. Objects with the
// x-etcd-snapshot-exclude tag are not ignored, because listings do not contain tags.
//
// # Names are hints
//
// Object names only help to select objects; a restore relies on the content of the objects. The sidecar reads the
// revision in the name of a full snapshot before it takes the snapshot, so the content may be newer. [Base] contains
// the last revision of the database, and rows up to the last revision of the database are not added again. If two
// sidecars run concurrently, their deltas overlap, and rows that appear in both deltas must be equal. If no object
// contains a required revision, the error is archive.ErrNotKept. Gaps are common before a full snapshot, because the
// sidecar discards its collected events when it takes a snapshot.
//
// The time of an event is the time at which the sidecar received the event, according to the sidecar's clock. If a
// full snapshot takes a minute to upload, the recorded times of the events that follow may be a minute late.
//
// # Why the rows equal etcd's rows
//
// etcd numbers the rows of a transaction in the order of its writes, and a watch delivers one event per row in the
// same order: for each put, for each deleted key of a range, and for each key of an expired lease. The sidecar
// watches all keys and stores complete events, except for previous values, which it does not request. The row's key
// can therefore be built from the revision and the position within the revision, and the row's value from the key,
// value, revisions, version and lease of the event, byte for byte.
//
// The rows differ in one case: etcd versions before 2024 (etcd issue 18089) drop the deletions in the revision at
// which a watch starts if that revision was compacted. If the sidecar's watch starts at a compacted revision, rows
// after a dropped row get positions that are too low, and the deleted key still exists.
//
// # Limits of deltas
//
// Deltas do not contain leases, users, roles, alarms, members, the authentication status or the compacted revision,
// so a restore takes all of these from the full snapshot. A key whose lease was granted after the full snapshot
// refers to an unknown lease and exists until the key is deleted or overwritten. A lease that was revoked after the
// full snapshot exists without keys until it expires. A password that was changed after the full snapshot is reset to
// the previous one.
package sidecarstore

import (
	"cmp"
	"compress/gzip"
	"compress/lzw"
	"compress/zlib"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
)

// Object is a full snapshot or a delta, as described by its name.
type Object struct {
	Name        string    // name in the store
	Full        bool      // full snapshot if true, otherwise delta
	First, Last int64     // revisions; for a full snapshot, First is 0 and the content may be newer than Last
	Created     time.Time // according to the sidecar's clock, rounded down to the second
	Size        int64     // size in the store

	compression string // suffix of the name
}

var namePattern = regexp.MustCompile(`^(?:v[12]/)?(?:Backup-\d+/)?(Full|Incr)-(\d+)-(\d+)-(\d+)((?:\.[A-Za-z0-9]+)*)$`)

// parse returns the object that a name describes, and false if the sidecar did not create the object.
func parse(stored store.Object) (object Object, ours bool) {
	words := namePattern.FindStringSubmatch(stored.Name)
	if words == nil {
		return Object{}, false
	}
	var numbers [3]int64
	for i := range numbers {
		number, err := strconv.ParseInt(words[2+i], 10, 64)
		if err != nil {
			return Object{}, false
		}
		numbers[i] = number
	}
	return Object{
		Name: stored.Name, Full: words[1] == "Full", First: numbers[0], Last: numbers[1], Created: time.Unix(numbers[2], 0).UTC(),
		Size: stored.Size, compression: strings.TrimSuffix(words[5], ".final"),
	}, numbers[0] <= numbers[1]
}

// inSequence orders objects by last revision, as the sidecar does. A full snapshot is placed after the deltas that
// end at or before its revision.
func inSequence(a, b Object) int {
	rank := map[bool]int{true: 1}
	return cmp.Or(cmp.Compare(a.Last, b.Last), rank[a.Full]-rank[b.Full], a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// Archive is a listing of the sidecar's backups in a store. An Archive is safe for concurrent use.
type Archive struct {
	Chains []Chain  // oldest first
	Stray  []Object // deltas older than every full snapshot, and therefore unusable

	store store.Store
}

// Chain is a full snapshot and the deltas before the next full snapshot, judging by the object names.
type Chain struct {
	Full   Object
	Deltas []Object // ordered by last revision; concurrent sidecars may create overlapping deltas
}

// LastConnected returns the last object that, judging by the object names, follows the full snapshot without a gap,
// or the full snapshot itself if no delta follows.
func (c Chain) LastConnected() Object {
	reached := c.Full
	for _, delta := range byFirst(c.Deltas) {
		if delta.First > reached.Last+1 {
			break
		}
		if delta.Last > reached.Last {
			reached = delta
		}
	}
	return reached
}

// List lists the sidecar's backups in s. An empty store yields an empty archive. All errors come from the store.
func List(ctx context.Context, s store.Store) (*Archive, error) {
	listed := &Archive{store: s}
	objects, err := find(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sidecar's backups: %w", err)
	}
	slices.SortFunc(objects, inSequence)
	for _, object := range objects {
		last := len(listed.Chains) - 1
		switch {
		case object.Full:
			listed.Chains = append(listed.Chains, Chain{Full: object})
		case last < 0:
			listed.Stray = append(listed.Stray, object)
		default:
			listed.Chains[last].Deltas = append(listed.Chains[last].Deltas, object)
		}
	}
	return listed, nil
}

// find lists the sidecar's objects. It lists only the prefixes that the sidecar uses, because the store may contain
// many other objects.
func find(ctx context.Context, s store.Store) (objects []Object, err error) {
	for _, prefix := range []string{"Backup-", "Full-", "Incr-", "v1/", "v2/"} {
		for stored, err := range s.List(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			if object, ours := parse(stored); ours {
				objects = append(objects, object)
			}
		}
	}
	return objects, nil
}

// FullSnapshots returns the full snapshots from which the target can be reached, best first. If a snapshot is damaged
// or reading it returns ErrNewer, the caller tries the next one. FullSnapshots returns an error if there are no full
// snapshots or all of them are newer than the target.
func (a *Archive) FullSnapshots(to archive.Target) (fulls []Object, err error) {
	for _, chain := range slices.Backward(a.Chains) {
		if chain.Full.isBefore(to) {
			fulls = append(fulls, chain.Full)
		}
	}
	switch {
	case len(fulls) > 0:
		return fulls, nil
	case len(a.Chains) == 0:
		return nil, fmt.Errorf("%w: no full snapshots from the sidecar in %s", archive.ErrNotKept, a.store)
	default:
		oldest := a.Chains[0].Full
		return nil, fmt.Errorf("%w: %s is older than the oldest full snapshot (%s, created %s)", archive.ErrNotKept, to, oldest.Name,
			oldest.Created.Format(time.RFC3339))
	}
}

// isBefore reports whether a full snapshot is at or before the target, judging by the object name.
func (o Object) isBefore(to archive.Target) bool {
	switch {
	case to.Revision > 0:
		return o.Last <= to.Revision
	case !to.Time.IsZero():
		return !o.Created.Add(time.Second).After(to.Time) // the name contains the creation time in seconds
	default:
		return true
	}
}

// after returns the deltas that contain revisions after the given one, ordered by first revision.
func (a *Archive) after(revision int64) (deltas []Object) {
	for _, chain := range a.Chains {
		deltas = append(deltas, chain.Deltas...)
	}
	deltas = slices.DeleteFunc(append(deltas, a.Stray...), func(o Object) bool { return o.Last <= revision })
	return byFirst(deltas)
}

func byFirst(deltas []Object) []Object {
	return slices.SortedStableFunc(slices.Values(deltas), func(a, b Object) int { return cmp.Compare(a.First, b.First) })
}

// Errors about unusable backups. Functions also return restore.ErrDamaged, archive.ErrNotKept, and errors from the
// store and the context.
var (
	// ErrNewer means that a full snapshot contains later revisions than the target, even though its name contains an
	// earlier revision, so an older full snapshot is needed.
	ErrNewer = errors.New("full snapshot is newer than the target")
	// ErrConflict means that two objects contain different changes for the same revision, because they belong to two
	// clusters or the cluster was rolled back.
	ErrConflict = errors.New("backups conflict")
)

// Snapshot opens a full snapshot as created by etcd: the database followed by its SHA-256, which the caller must
// verify. Errors are restore.ErrDamaged, or errors from the context or the store. The reader uses little memory
// regardless of the content, but the caller must limit how much it reads. The reader is not safe for concurrent use,
// is valid until ctx is done, and must be closed.
func (a *Archive) Snapshot(ctx context.Context, full Object) (io.ReadCloser, error) {
	return a.open(ctx, full)
}

// content reads the decompressed content of an object.
type content struct {
	io.Reader
	object Object
	stored io.Closer
}

func (a *Archive) open(ctx context.Context, object Object) (*content, error) {
	fetched, err := archive.Fetch(ctx, a.store, object.Name)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errRead, object.Name, err)
	}
	opened := &content{object: object, stored: fetched}
	if opened.Reader, err = decompress(object.compression, storedReader{fetched, object.Name}); err != nil {
		defer opened.Close()
		return nil, opened.classify(err)
	}
	return opened, nil
}

// decompress selects the algorithm based on the suffix of the object name.
func decompress(suffix string, compressed io.Reader) (io.Reader, error) {
	switch suffix {
	case "":
		return compressed, nil
	case ".gz":
		return gzip.NewReader(compressed)
	case ".zlib":
		return zlib.NewReader(compressed)
	case ".Z":
		return lzw.NewReader(compressed, lzw.LSB, 8), nil
	default:
		return nil, errSuffix
	}
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.classify(err)
	}
	return n, err
}

// Close closes the stored object, even if the content was not read to the end.
func (c *content) Close() error { return c.stored.Close() }

// classify returns an error from the store unchanged. Any other error means that the object is damaged.
func (c *content) classify(err error) error {
	switch {
	case errors.Is(err, errRead):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return c.damage(errors.New("the object is truncated"))
	default:
		return c.damage(err)
	}
}

func (c *content) damage(cause error) error {
	return fmt.Errorf("%w: %s: %w", restore.ErrDamaged, c.object.Name, cause)
}

// errRead marks errors from the store, as opposed to errors from decoding the content.
var errRead = errors.New("cannot read")

// storedReader wraps errors from the store with errRead.
type storedReader struct {
	io.Reader
	name string
}

func (s storedReader) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !format.Ended(err) {
		err = fmt.Errorf("%w %s: %w", errRead, s.name, err)
	}
	return n, err
}

// maxEvent limits the JSON of an event in bytes, and therefore the memory that a delta needs. The limit leaves room
// for a value of up to 12 MB. etcd accepts requests of 1.5 MB by default, and its documentation advises against more
// than 10 MB.
const maxEvent = 16 << 20

// event is an event in the sidecar's JSON format.
type event struct {
	EtcdEvent *mvccpb.Event `json:"etcdEvent"`
	Time      time.Time     `json:"time"`
}

// delta reads the rows of a delta one at a time.
type delta struct {
	content *content
	budget  *budget
	decoder *json.Decoder

	row      format.Row // current row
	received time.Time  // according to the sidecar's clock
	revision int64      // revision of the current row
	position int64      // position of the current row within the revision
}

// openDelta opens a delta and advances to the first row. ended is true if the delta does not contain any rows.
func (a *Archive) openDelta(ctx context.Context, object Object) (opened *delta, ended bool, err error) {
	content, err := a.open(ctx, object)
	if err != nil {
		return nil, false, err
	}
	content.Reader = restore.NewDigestReader(ctx, content.Reader)
	d := &delta{content: content, budget: &budget{from: content, left: maxEvent}}
	d.decoder = json.NewDecoder(d.budget)
	d.decoder.DisallowUnknownFields() // ignoring an unknown field would lose data
	if token, err := d.decoder.Token(); err != nil || token != json.Delim('[') {
		defer d.close()
		return nil, false, d.classify(err)
	}
	if ended, err = d.next(); err != nil || ended {
		d.close()
	}
	return d, ended, err
}

// next advances to the next row. If ended is true, the digest was verified.
func (d *delta) next() (ended bool, err error) {
	d.budget.left = maxEvent
	if !d.decoder.More() {
		return true, d.end()
	}
	var next event
	if err := d.decoder.Decode(&next); err != nil {
		return false, d.classify(err)
	}
	if err := check(next); err != nil {
		return false, d.rejectContent(err)
	}
	return false, d.setRow(next)
}

// end returns an error unless the array ends and no data except the digest follows.
func (d *delta) end() error {
	if _, err := d.decoder.Token(); err != nil {
		return d.classify(err)
	}
	if _, err := d.decoder.Token(); !errors.Is(err, io.EOF) {
		return d.classify(err)
	}
	return nil
}

// verify reads the rest of the delta and returns an error if the digest does not match.
func (d *delta) verify() error {
	_, err := io.Copy(io.Discard, d.content)
	return err
}

func (d *delta) close() { _ = d.content.Close() }

// classify returns an error from the store unchanged, and reports any other error as damage. The message never
// includes the decoder's message, which quotes the backup.
func (d *delta) classify(err error) error {
	switch {
	case errors.Is(err, errRead), errors.Is(err, restore.ErrDamaged):
		return err
	case errors.Is(err, errLarge):
		return d.content.damage(errLarge)
	default:
		return d.rejectContent(fmt.Errorf("invalid event array at byte %d", d.decoder.InputOffset()))
	}
}

// rejectContent reports cause as damage if the digest matches. Otherwise, it returns the digest error, because the
// sidecar did not write this content.
func (d *delta) rejectContent(cause error) error {
	if err := d.verify(); err != nil {
		return err
	}
	return d.content.damage(cause)
}

// check returns an error if etcd cannot have produced the event.
func check(e event) error {
	if e.EtcdEvent == nil || e.EtcdEvent.Kv == nil || len(e.EtcdEvent.Kv.Key) == 0 {
		return errors.New("event has no key")
	}
	kv, put := e.EtcdEvent.Kv, e.EtcdEvent.Type == mvccpb.PUT
	switch {
	case !put && e.EtcdEvent.Type != mvccpb.DELETE:
		return fmt.Errorf("event at revision %d has unknown type %d", kv.ModRevision, e.EtcdEvent.Type)
	case put && (kv.Version < 1 || kv.CreateRevision < 1 || kv.CreateRevision > kv.ModRevision):
		return fmt.Errorf("put at revision %d has an invalid version (%d) or create revision (%d)",
			kv.ModRevision, kv.Version, kv.CreateRevision)
	default:
		return nil
	}
}

// setRow makes the event the current row.
func (d *delta) setRow(e event) error {
	revision, object := e.EtcdEvent.Kv.ModRevision, d.content.object
	switch {
	case revision < max(d.revision, object.First):
		return d.rejectContent(fmt.Errorf("found revision %d, expected %d or later", revision, max(d.revision, object.First)))
	case revision > d.revision:
		d.revision, d.position = revision, 0
	default:
		d.position++
	}
	d.row, d.received = format.Row{Key: rowKey(d.revision, d.position)}, e.Time
	kv := e.EtcdEvent.Kv
	if e.EtcdEvent.Type == mvccpb.DELETE {
		d.row.Key = append(d.row.Key, 't')
		kv = &mvccpb.KeyValue{Key: kv.Key}
	}
	value, err := kv.Marshal()
	d.row.Value = value
	return err
}

// rowKey returns the key of a row without the tombstone mark.
func rowKey(revision, position int64) []byte {
	key := binary.BigEndian.AppendUint64(make([]byte, 0, 18), uint64(revision))
	return binary.BigEndian.AppendUint64(append(key, '_'), uint64(position))
}

var (
	errSuffix = errors.New("unknown compression suffix")
	errLarge  = fmt.Errorf("event larger than %d MiB", maxEvent>>20)
)

// budget is a reader that returns errLarge after left bytes. The caller resets left for each event.
type budget struct {
	from io.Reader
	left int64
}

// Read fills p, because the decoder rescans its whole buffer after each read.
func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLarge
	}
	n, err := io.ReadFull(b.from, p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if err == io.ErrUnexpectedEOF { // io.ReadFull returns this error unwrapped at the end of the content
		err = nil
	}
	return n, err
}
