package sidecarstore

import (
	"compress/gzip"
	"compress/lzw"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"

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

// content is what an object holds, decompressed and without the digest at its end.
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

// explain tells what is the store's fault from what is the object's.
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

// maxLost is how often in a row a connection may be lost without a byte in between.
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
