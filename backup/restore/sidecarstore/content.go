package sidecarstore

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/lzw"
	"compress/zlib"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"etcd-wrapper/backup/store"
)

// Snapshot reads a full snapshot as etcd made it: the database followed by its SHA-256, as etcdutl expects it. The
// reader returns io.EOF only if the digest matches. Otherwise it returns ErrDamaged or the store's error, and
// everything that was read must be discarded. It needs little memory, whatever the content; the caller limits what is
// written to disk. The reader must not be used concurrently, is valid until ctx ends and must be closed.
func (a *Archive) Snapshot(ctx context.Context, full Object) (io.ReadCloser, error) {
	opened, err := a.open(ctx, full)
	if err != nil {
		return nil, err
	}
	opened.keepSum = true
	return opened, nil
}

// content is the decompressed content of an object without its digest.
type content struct {
	*digestReader
	object Object
	stored *parts
}

func (a *Archive) open(ctx context.Context, object Object) (*content, error) {
	opened := &content{object: object, stored: &parts{ctx: ctx, store: a.store, names: object.parts}}
	plain, err := decompress(object.compression, opened.stored)
	if err != nil {
		defer opened.Close()
		return nil, opened.classify(err)
	}
	opened.digestReader = newDigestReader(plain)
	return opened, nil
}

// decompress selects the algorithm by the suffixes that the sidecar uses.
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

func (c *content) Read(p []byte) (int, error) {
	n, err := c.digestReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.classify(err)
	}
	return n, err
}

// Close may be called at any time.
func (c *content) Close() error { return c.stored.Close() }

// classify distinguishes errors of the store from damage of the object.
func (c *content) classify(err error) error {
	switch {
	case c.stored.failed != nil:
		return c.stored.failed
	case errors.Is(err, ErrDamaged):
		return err
	default:
		return damageError(c.object.Name, err)
	}
}

// maxLost limits how often in a row a connection may break without progress.
const maxLost = 3

// parts reads objects one after the other. When a connection breaks, it continues at the same offset, because a full
// snapshot takes long.
type parts struct {
	ctx     context.Context
	store   store.Store
	names   []string      // of the objects that are still to be read
	offset  int64         // in the first of these objects, in bytes
	current io.ReadCloser // nil if no object is open
	lost    int           // connections that broke in a row
	failed  error         // permanent error of the store
}

func (p *parts) Read(b []byte) (n int, err error) {
	for p.failed == nil && len(p.names) > 0 {
		if p.current == nil {
			p.current, p.failed = p.store.Get(p.ctx, p.names[0], p.offset, -1)
			continue
		}
		n, err = p.current.Read(b)
		p.handleRead(n, err)
		if n > 0 {
			return n, nil
		}
	}
	if p.failed != nil {
		return 0, p.failed
	}
	return 0, io.EOF
}

// handleRead advances past what was read, and decides how the next read continues.
func (p *parts) handleRead(n int, err error) {
	p.offset += int64(n)
	if n > 0 {
		p.lost = 0
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, io.EOF):
		p.names, p.offset = p.names[1:], 0
	case errors.Is(err, store.ErrUnavailable) && p.lost < maxLost:
		p.lost++
	default:
		p.failed = fmt.Errorf("cannot read %s: %w", p.names[0], err)
	}
	_ = p.Close() // it was only read
}

func (p *parts) Close() (err error) {
	if p.current != nil {
		err = p.current.Close()
		p.current = nil
	}
	return err
}

// digestReader reads content that ends with its SHA-256, and returns io.EOF only if that matches. With keepSum, it
// returns the digest as well.
type digestReader struct {
	from    *bufio.Reader
	hash    hash.Hash
	keepSum bool
	sum     []byte // the part of the digest that is still to be returned; nil before the end of the content
}

func newDigestReader(from io.Reader) *digestReader {
	return &digestReader{from: bufio.NewReaderSize(from, 64<<10), hash: sha256.New()}
}

func (s *digestReader) Read(p []byte) (int, error) {
	if s.sum == nil {
		if _, err := s.from.Peek(sha256.Size + 1); err == io.EOF {
			if err := s.verify(); err != nil {
				return 0, err
			}
		} else if err != nil {
			return 0, err
		}
	}
	if s.sum != nil {
		return s.readSum(p)
	}
	n, err := s.from.Read(p[:min(len(p), s.from.Buffered()-sha256.Size)])
	s.hash.Write(p[:n])
	return n, err
}

// verify compares the digest. It is called when nothing but the digest is left.
func (s *digestReader) verify() error {
	left, err := io.ReadAll(s.from)
	if err != nil {
		return err
	}
	if !bytes.Equal(left, s.hash.Sum(nil)) {
		return errSum
	}
	s.sum = left
	return nil
}

func (s *digestReader) readSum(p []byte) (int, error) {
	if !s.keepSum || len(s.sum) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.sum)
	s.sum = s.sum[n:]
	return n, nil
}

// maxEvent limits the JSON of an event, in bytes, and so the memory that a delta needs. It is enough for a value of
// 12 MB; etcd accepts requests of 1.5 MB by default, and its documentation advises against more than 10 MB.
const maxEvent = 16 << 20

// Row is a row of etcd's bucket named key: the state of a key at a revision.
type Row struct {
	Key   []byte    // the revision, the position within it, and a mark if the key was deleted
	Value []byte    // an mvccpb.KeyValue
	Time  time.Time // time of receipt by the sidecar's clock
}

// event is an event in the JSON of the sidecar.
type event struct {
	EtcdEvent *mvccpb.Event `json:"etcdEvent"`
	Time      time.Time     `json:"time"`
}

// delta reads the rows of a delta one by one.
type delta struct {
	content *content
	budget  *budget
	decoder *json.Decoder

	row      Row // the current row
	revision int64
	position int64 // within the revision
}

// openDelta opens a delta and advances to its first row. ended means that it has none.
func (a *Archive) openDelta(ctx context.Context, object Object) (opened *delta, ended bool, err error) {
	content, err := a.open(ctx, object)
	if err != nil {
		return nil, false, err
	}
	d := &delta{content: content, budget: &budget{from: content, left: maxEvent}}
	d.decoder = json.NewDecoder(d.budget)
	d.decoder.DisallowUnknownFields() // an unknown field would be lost
	if token, err := d.decoder.Token(); err != nil || token != json.Delim('[') {
		defer d.close()
		return nil, false, d.classify(err)
	}
	if ended, err = d.next(); err != nil || ended {
		d.close()
	}
	return d, ended, err
}

// next advances to the next row. When it returns ended, the digest was verified.
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

// end requires the end of the array, and nothing after it.
func (d *delta) end() error {
	if _, err := d.decoder.Token(); err != nil {
		return d.classify(err)
	}
	if _, err := d.decoder.Token(); !errors.Is(err, io.EOF) {
		return d.classify(err)
	}
	return nil
}

// verify reads the rest of the delta only to verify its digest.
func (d *delta) verify() error {
	_, err := io.Copy(io.Discard, d.content)
	return err
}

func (d *delta) close() { _ = d.content.Close() }

// classify never repeats the decoder's message, which quotes the backup.
func (d *delta) classify(err error) error {
	switch {
	case d.content.stored.failed != nil:
		return d.content.stored.failed
	case errors.Is(err, ErrDamaged):
		return err
	case errors.Is(err, errLarge):
		return damageError(d.content.object.Name, errLarge)
	default:
		return d.rejectContent(fmt.Errorf("at byte %d it is not the array of events that a sidecar writes", d.decoder.InputOffset()))
	}
}

// rejectContent reports cause, unless the digest is wrong: then the sidecar did not write this content.
func (d *delta) rejectContent(cause error) error {
	if err := d.verify(); err != nil {
		return err
	}
	return damageError(d.content.object.Name, cause)
}

// check returns an error if etcd cannot have produced the event.
func check(e event) error {
	if e.EtcdEvent == nil || e.EtcdEvent.Kv == nil || len(e.EtcdEvent.Kv.Key) == 0 {
		return errors.New("an event has no key")
	}
	kv, put := e.EtcdEvent.Kv, e.EtcdEvent.Type == mvccpb.PUT
	switch {
	case !put && e.EtcdEvent.Type != mvccpb.DELETE:
		return fmt.Errorf("an event of revision %d is of the unknown type %d", kv.ModRevision, e.EtcdEvent.Type)
	case put && (kv.Version < 1 || kv.CreateRevision < 1 || kv.CreateRevision > kv.ModRevision):
		return fmt.Errorf("a put of revision %d has version %d of a key with create revision %d",
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
		return d.rejectContent(fmt.Errorf("it has revision %d, expected %d or later", revision, max(d.revision, object.First)))
	case revision > d.revision:
		d.revision, d.position = revision, 0
	default:
		d.position++
	}
	d.row = Row{Key: rowKey(d.revision, d.position), Time: e.Time}
	kv := e.EtcdEvent.Kv
	if e.EtcdEvent.Type == mvccpb.DELETE {
		d.row.Key = append(d.row.Key, 't')
		kv = &mvccpb.KeyValue{Key: kv.Key}
	}
	value, err := kv.Marshal()
	d.row.Value = value
	return err
}

// rowKey returns the key of a row, without the mark of a deletion.
func rowKey(revision, position int64) []byte {
	key := binary.BigEndian.AppendUint64(make([]byte, 0, 18), uint64(revision))
	return binary.BigEndian.AppendUint64(append(key, '_'), uint64(position))
}

// budget is a reader that returns errLarge once left bytes were read. The caller sets left again for each event.
type budget struct {
	from io.Reader
	left int64
}

// Read fills p, because the decoder scans everything it has again after each read.
func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLarge
	}
	n, err := io.ReadFull(b.from, p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if err == io.ErrUnexpectedEOF { // unwrapped, it comes from ReadFull at the end of the content
		err = nil
	}
	return n, err
}
