package archive

import (
	"context"
	"errors"
	"io"
	"time"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
)

const (
	tries      = 6                      // as long as nothing has come
	triesOn    = 12                     // behind what has come, two minutes or so: all of it would have to be fetched again
	firstTry   = 100 * time.Millisecond // then twice as long each time
	longestTry = 30 * time.Second
)

// fetch reads an object from a byte on, to its end, and goes on where it was cut off when the store was unavailable: objects
// don't change, and what takes an hour to read should not be read again because of one connection.
func (a *Archive) fetch(ctx context.Context, name string, offset int64, told func(bytes int)) (io.ReadCloser, error) {
	f := &fetching{ctx: ctx, store: a.store, name: name, offset: offset, told: told}
	return f, f.open()
}

type fetching struct {
	ctx    context.Context
	store  store.Store
	name   string
	offset int64
	told   func(bytes int) // may be nil
	failed int             // how often in a row
	came   bool            // something has

	content io.ReadCloser // nil when it was cut off
}

// open asks until there is an answer that another try would not better.
func (f *fetching) open() (err error) {
	for {
		f.content, err = f.store.Get(f.ctx, f.name, f.offset, -1)
		if err == nil || !f.again(err) {
			return err
		}
	}
}

func (f *fetching) Read(p []byte) (int, error) {
	for {
		if f.content == nil {
			if err := f.open(); err != nil {
				return 0, err
			}
		}
		n, err := f.content.Read(p)
		f.offset += int64(n)
		if n > 0 {
			f.failed, f.came = 0, true
			if f.told != nil {
				f.told(n)
			}
		}
		if err == nil || seal.Ended(err) || !errors.Is(err, store.ErrUnavailable) {
			return n, err
		}
		_ = f.Close()
		if n > 0 {
			return n, nil
		}
		if !f.again(err) {
			return 0, err
		}
	}
}

// again waits before another try, and tells whether it makes sense.
func (f *fetching) again(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) || f.failed >= tries && !f.came || f.failed >= triesOn {
		return false
	}
	timer := time.NewTimer(max(min(firstTry<<f.failed, longestTry), store.RetryAfter(err)))
	defer timer.Stop()
	f.failed++
	select {
	case <-f.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (f *fetching) Close() error {
	if f.content == nil {
		return nil
	}
	content := f.content
	f.content = nil
	return content.Close()
}
