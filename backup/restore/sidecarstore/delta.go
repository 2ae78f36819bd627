package sidecarstore

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// maxEvent bounds the JSON of an event, in bytes, and with it what a delta takes of memory. It holds a value of 12 MB; etcd
// takes requests of 1.5 MB by default, and its authors advise against more than 10 MB.
const maxEvent = 16 << 20

// Row is a row of the bucket key of etcd's database: a key at a revision.
type Row struct {
	Key   []byte    // the revision and the position within it, and a mark if the key was deleted
	Value []byte    // an mvccpb.KeyValue
	Time  time.Time // when the sidecar received it, by its clock
}

// event is what the sidecar writes of an event.
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

// next goes to the next row. At the end the digest was right.
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

// end expects the end of the array, and nothing behind it.
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

// explain never repeats what the decoder says, since that quotes the backup.
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

// check says what keeps an event from being one of etcd's.
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

// take makes the event the present row.
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

// rowKey is the key of a row, without the mark of a deletion.
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
