package restore

import (
	"context"
	"sync"

	"etcd-wrapper/backup/format/segment"
)

const (
	batchSize = 256 << 10 // bytes of rows in one batch, unless a single row is larger
	waiting   = 4         // batches that may wait
)

// batch is rows on their way from who reads them to who inserts them.
type batch struct {
	rows    []segment.Row
	content []byte // of all of them
}

// batches are used again, because rows come by the million.
var batches = sync.Pool{New: func() any { return &batch{content: make([]byte, 0, batchSize)} }}

// reading hands rows to a function, and ends with the first error of it.
type reading func(context.Context, func(segment.Row) error) (Changes, error)

// insertMeanwhile has rows inserted while the next ones are read, because each takes about as long as the other. It returns
// when both have ended, with an error of inserting, or else of reading. insert must copy what it keeps.
func insertMeanwhile(ctx context.Context, read reading, insert func(segment.Row) error) (changed Changes, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	full := make(chan *batch, waiting)
	go func() {
		defer close(full)
		err = guarded(func() (err error) {
			changed, err = readInto(ctx, full, read)
			return err
		})
	}()
	var failed error
	for b := range full {
		if failed == nil {
			failed = b.each(insert)
		}
		if failed != nil {
			cancel()
		}
	}
	if failed != nil {
		return Changes{}, failed
	}
	return changed, err
}

// readInto copies the rows into batches.
func readInto(ctx context.Context, full chan<- *batch, read reading) (Changes, error) {
	b := batches.Get().(*batch)
	hand := func() error {
		select {
		case full <- b:
			b = batches.Get().(*batch)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	changed, err := read(ctx, func(row segment.Row) error {
		if !b.has(row) {
			if err := hand(); err != nil {
				return err
			}
		}
		b.add(row)
		return nil
	})
	if err != nil {
		return Changes{}, err
	}
	return changed, hand()
}

// has tells whether there is room for a row.
func (b *batch) has(row segment.Row) bool {
	return len(b.rows) == 0 || len(b.content)+len(row.Key)+len(row.Value) <= batchSize
}

func (b *batch) add(row segment.Row) {
	b.rows = append(b.rows, segment.Row{Key: b.copy(row.Key), Value: b.copy(row.Value)})
}

func (b *batch) copy(from []byte) []byte {
	start := len(b.content)
	b.content = append(b.content, from...)
	return b.content[start:len(b.content):len(b.content)]
}

// each hands over the rows until there is an error. The batch is gone afterwards.
func (b *batch) each(row func(segment.Row) error) (err error) {
	for at := 0; at < len(b.rows) && err == nil; at++ {
		err = row(b.rows[at])
	}
	b.rows, b.content = b.rows[:0], b.content[:0]
	batches.Put(b)
	return err
}
