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

// Snapshot reads a full as etcd made it: the database and the SHA-256 of it, as etcdutl expects it. The reader returns io.EOF
// only if the digest was right; otherwise ErrDamaged, or the store's error, and then nothing of what was read may be used.
// It takes little memory, whatever the content; how much the caller puts on a disk is for the caller to bound. The reader
// belongs to one goroutine, lives as long as ctx and must be closed.
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
	*sealed
	object Object
	stored *parts
}

func (a *Archive) open(ctx context.Context, object Object) (*content, error) {
	opened := &content{object: object, stored: &parts{ctx: ctx, store: a.store, names: object.parts}}
	plain, err := decompress(object.compression, opened.stored)
	if err != nil {
		defer opened.Close()
		return nil, opened.explain(err)
	}
	opened.sealed = newSealed(plain)
	return opened, nil
}

// decompress names its suffixes as the sidecar does.
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
	n, err := c.sealed.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.explain(err)
	}
	return n, err
}

// Close may be called at any time.
func (c *content) Close() error { return c.stored.Close() }

// explain distinguishes errors of the store from damage of the object.
func (c *content) explain(err error) error {
	switch {
	case c.stored.failed != nil:
		return c.stored.failed
	case errors.Is(err, ErrDamaged):
		return err
	default:
		return damaged(c.object.Name, err)
	}
}

// maxLost limits how often in a row a connection may be lost without progress.
const maxLost = 3

// parts reads objects one after the other. A connection that is lost is taken up again where it was, since a full takes long.
type parts struct {
	ctx     context.Context
	store   store.Store
	names   []string      // of what is still to be read
	offset  int64         // in the first of them, in bytes
	current io.ReadCloser // nil if there is none
	lost    int           // connections in a row
	failed  error         // the store's, for good
}

func (p *parts) Read(b []byte) (n int, err error) {
	for p.failed == nil && len(p.names) > 0 {
		if p.current == nil {
			p.current, p.failed = p.store.Get(p.ctx, p.names[0], p.offset, -1)
			continue
		}
		n, err = p.current.Read(b)
		p.note(n, err)
		if n > 0 {
			return n, nil
		}
	}
	if p.failed != nil {
		return 0, p.failed
	}
	return 0, io.EOF
}

// note decides what a read means for the next one.
func (p *parts) note(n int, err error) {
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

// sealed reads what has its SHA-256 at its end, and returns io.EOF only if that is right. The digest is read as well if keepSum.
type sealed struct {
	from    *bufio.Reader
	hash    hash.Hash
	keepSum bool
	sum     []byte // of the digest, what is still to be read; nil before the end
}

func newSealed(from io.Reader) *sealed {
	return &sealed{from: bufio.NewReaderSize(from, 64<<10), hash: sha256.New()}
}

func (s *sealed) Read(p []byte) (int, error) {
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

// verify is called when no more than the digest is left.
func (s *sealed) verify() error {
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

func (s *sealed) readSum(p []byte) (int, error) {
	if !s.keepSum || len(s.sum) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.sum)
	s.sum = s.sum[n:]
	return n, nil
}

// maxEvent bounds the JSON of an event, in bytes, and with it what a delta takes of memory. It holds a value of 12 MB; etcd
// takes requests of 1.5 MB by default, and its authors advise against more than 10 MB.
const maxEvent = 16 << 20

// Row is a row of etcd's bucket named key: a key at a revision.
type Row struct {
	Key   []byte    // the revision and the position within it, and a mark if the key was deleted
	Value []byte    // an mvccpb.KeyValue
	Time  time.Time // time of receipt by the sidecar's clock
}

// event is an event as the sidecar writes it.
type event struct {
	EtcdEvent *mvccpb.Event `json:"etcdEvent"`
	Time      time.Time     `json:"time"`
}

// delta reads the rows of a delta one by one.
type delta struct {
	content *content
	budget  *budget
	decoder *json.Decoder

	row      Row // the present one
	revision int64
	position int64 // within the revision
}

// openDelta goes to the first row. There is none if ended.
func (a *Archive) openDelta(ctx context.Context, object Object) (opened *delta, ended bool, err error) {
	content, err := a.open(ctx, object)
	if err != nil {
		return nil, false, err
	}
	d := &delta{content: content, budget: &budget{from: content, left: maxEvent}}
	d.decoder = json.NewDecoder(d.budget)
	d.decoder.DisallowUnknownFields() // what isn't understood would be lost
	if token, err := d.decoder.Token(); err != nil || token != json.Delim('[') {
		defer d.close()
		return nil, false, d.explain(err)
	}
	if ended, err = d.next(); err != nil || ended {
		d.close()
	}
	return d, ended, err
}

// next advances to the next row. At the end, the digest was verified.
func (d *delta) next() (ended bool, err error) {
	d.budget.left = maxEvent
	if !d.decoder.More() {
		return true, d.end()
	}
	var next event
	if err := d.decoder.Decode(&next); err != nil {
		return false, d.explain(err)
	}
	if err := check(next); err != nil {
		return false, d.refuse(err)
	}
	return false, d.take(next)
}

// end expects the end of the array, and nothing after it.
func (d *delta) end() error {
	if _, err := d.decoder.Token(); err != nil {
		return d.explain(err)
	}
	if _, err := d.decoder.Token(); !errors.Is(err, io.EOF) {
		return d.explain(err)
	}
	return nil
}

// verify reads what is left without looking at it, but for the digest.
func (d *delta) verify() error {
	_, err := io.Copy(io.Discard, d.content)
	return err
}

func (d *delta) close() { _ = d.content.Close() }

// explain never repeats the text of the decoder, which quotes the backup.
func (d *delta) explain(err error) error {
	switch {
	case d.content.stored.failed != nil:
		return d.content.stored.failed
	case errors.Is(err, ErrDamaged):
		return err
	case errors.Is(err, errLarge):
		return damaged(d.content.object.Name, errLarge)
	default:
		return d.refuse(fmt.Errorf("at byte %d it is not the array of events that a sidecar writes", d.decoder.InputOffset()))
	}
}

// refuse blames the sidecar only for what it wrote: a digest that is wrong says more.
func (d *delta) refuse(cause error) error {
	if err := d.verify(); err != nil {
		return err
	}
	return damaged(d.content.object.Name, cause)
}

// check returns an error if an event cannot be etcd's.
func check(e event) error {
	if e.EtcdEvent == nil || e.EtcdEvent.Kv == nil || len(e.EtcdEvent.Kv.Key) == 0 {
		return errors.New("an event has no key")
	}
	kv, put := e.EtcdEvent.Kv, e.EtcdEvent.Type == mvccpb.PUT
	switch {
	case !put && e.EtcdEvent.Type != mvccpb.DELETE:
		return fmt.Errorf("an event of revision %d is of the unknown type %d", kv.ModRevision, e.EtcdEvent.Type)
	case put && (kv.Version < 1 || kv.CreateRevision < 1 || kv.CreateRevision > kv.ModRevision):
		return fmt.Errorf("a put of revision %d is said to be version %d of a key that was created at revision %d",
			kv.ModRevision, kv.Version, kv.CreateRevision)
	default:
		return nil
	}
}

// take makes the event the current row.
func (d *delta) take(e event) error {
	revision, object := e.EtcdEvent.Kv.ModRevision, d.content.object
	switch {
	case revision < max(d.revision, object.First):
		return d.refuse(fmt.Errorf("it has revision %d where %d or later must be", revision, max(d.revision, object.First)))
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

// budget is a reader of which no more than left bytes may be read until left is set again.
type budget struct {
	from io.Reader
	left int64
}

// Read fills p, since the decoder looks again at all that it has after each read.
func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLarge
	}
	n, err := io.ReadFull(b.from, p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if err == io.ErrUnexpectedEOF { // bare it is ReadFull's, and says that the end was reached
		err = nil
	}
	return n, err
}
