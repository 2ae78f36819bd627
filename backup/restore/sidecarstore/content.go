package sidecarstore

import (
	"compress/gzip"
	"compress/lzw"
	"compress/zlib"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
)

// Snapshot opens a full snapshot as created by etcd: the database followed by its SHA-256, which the caller must
// verify. Errors are restore.ErrDamaged, or errors from the context or the store. The reader needs little memory for
// any content; the caller must limit the size of the output. The reader is not safe for concurrent use, is valid
// until ctx is done, and must be closed.
func (a *Archive) Snapshot(ctx context.Context, full Object) (io.ReadCloser, error) {
	return a.open(ctx, full)
}

// content is the decompressed content of an object.
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

// Close may be called at any time.
func (c *content) Close() error { return c.stored.Close() }

// classify distinguishes store errors from damaged objects.
func (c *content) classify(err error) error {
	switch {
	case errors.Is(err, errRead):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return c.damage(errors.New("it is truncated"))
	default:
		return c.damage(err)
	}
}

func (c *content) damage(cause error) error {
	return fmt.Errorf("%w: %s: %w", restore.ErrDamaged, c.object.Name, cause)
}

// errRead is the prefix of store errors.
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

// maxEvent limits the JSON of an event in bytes, and therefore the memory that a delta needs. A value of up to 12 MB
// fits. etcd accepts requests of 1.5 MB by default, and its documentation advises against more than 10 MB.
const maxEvent = 16 << 20

// event is an event in the sidecar's JSON format.
type event struct {
	EtcdEvent *mvccpb.Event `json:"etcdEvent"`
	Time      time.Time     `json:"time"`
}

// delta reads the rows of a delta one by one.
type delta struct {
	content *content
	budget  *budget
	decoder *json.Decoder

	row      format.Row // current row
	received time.Time  // according to the sidecar's clock
	revision int64
	position int64 // position within the revision
}

// openDelta opens a delta and advances to the first row. ended means that the delta contains no rows.
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

// end checks that the array ends and no data follows.
func (d *delta) end() error {
	if _, err := d.decoder.Token(); err != nil {
		return d.classify(err)
	}
	if _, err := d.decoder.Token(); !errors.Is(err, io.EOF) {
		return d.classify(err)
	}
	return nil
}

// verify reads the rest of the delta to verify the digest.
func (d *delta) verify() error {
	_, err := io.Copy(io.Discard, d.content)
	return err
}

func (d *delta) close() { _ = d.content.Close() }

// classify never includes the decoder's message, which quotes the backup.
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

// rejectContent reports cause if the digest matches. A wrong digest means that the sidecar did not write this
// content.
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
