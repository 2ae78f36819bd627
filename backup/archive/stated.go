package archive

import (
	"context"
	"errors"
	"iter"
	"slices"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
)

// ahead is how many segments are looked at for the next statement of a bucket. Buckets are looked at every few seconds at the least.
const ahead = 600

// Stated is a small bucket as it was some time behind a path's revision: as the next segment has it that states it. It is nil if
// there is none among the next ones, or they cannot be read.
func (a *Archive) Stated(ctx context.Context, path Path, bucket string) (*segment.Bucket, error) {
	x, err := a.indexed(ctx, path.Generation.Number) // what the path lists may be merged by now
	if err != nil {
		return nil, err
	}
	left := ahead
	objects := x.before(path.bound).follow(path.Full.Next)
	for i, object := range objects {
		if i+1 < len(objects) && objects[i+1].Start.Revision <= path.Revision {
			continue // it ends before
		}
		for found, err := range a.manifests(ctx, object) {
			var fault *Fault
			if left--; left < 0 || errors.As(faulty(err, object.Name(), object.Start), &fault) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			if max(found.End, found.Position.Revision) > path.Revision && slices.Contains(found.Buckets, bucket) {
				return a.bucketIn(ctx, object, found, bucket)
			}
		}
	}
	return nil, nil
}

// bucketIn reads a bucket that a segment has; nil if that is damaged.
func (a *Archive) bucketIn(ctx context.Context, object Object, in located, name string) (found *segment.Bucket, err error) {
	for record, err := range a.records(ctx, object, in) {
		var fault *Fault
		if errors.As(faulty(err, object.Name(), in.Position), &fault) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if bucket, is := record.(*segment.Bucket); is && bucket.Name == name {
			found = bucket
		}
	}
	return found, nil
}

// records yields those of a segment in an object, each valid until the next one. What was read before an error counts for nothing.
func (a *Archive) records(ctx context.Context, object Object, in located) iter.Seq2[segment.Record, error] {
	return func(yield func(segment.Record, error) bool) {
		content, err := a.fetch(ctx, object.Name(), in.offset, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		defer content.Close()
		reader := segment.NewReader(content, a.keys)
		_, err = reader.Next()
		for err == nil {
			var record segment.Record
			if record, err = reader.Record(); err == nil && !yield(record, nil) {
				return
			}
		}
		if !seal.Ended(err) {
			yield(nil, a.named(object.Name(), err))
		}
	}
}
