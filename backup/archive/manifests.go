package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
)

// How much is read at once to find manifests, in bytes. One has about a thousand.
const (
	firstPart = 16 << 10
	nextPart  = 256 << 10
)

// located is a segment's manifest, and where it begins in its object, in bytes.
type located struct {
	segment.Manifest
	offset int64
}

// manifests yields those in an object, and skips what lies between. It ends with an error if they are not what the object's
// name says.
func (a *Archive) manifests(ctx context.Context, object Object) iter.Seq2[located, error] {
	return func(yield func(located, error) bool) {
		lines := &lines{archive: a, ctx: ctx, name: object.Name()}
		next := object.Start
		for offset := int64(0); offset == 0 || offset < object.Size; {
			manifest, length, err := lines.manifest(offset)
			if err == nil && (manifest.Generation != object.Generation || manifest.Position != next) {
				err = a.damaged(lines.name)
			}
			if !yield(located{manifest, offset}, err) || err != nil {
				return
			}
			next, offset = manifest.Next(), offset+length+manifest.Body.Bytes
		}
		if object.Level != Segment && next != object.Next {
			yield(located{}, a.damaged(lines.name))
		}
	}
}

func (a *Archive) firstManifest(ctx context.Context, object Object) (segment.Manifest, error) {
	for found, err := range a.manifests(ctx, object) {
		return found.Manifest, err
	}
	return segment.Manifest{}, a.damaged(object.Name())
}

func (a *Archive) lastManifest(ctx context.Context, object Object) (last segment.Manifest, err error) {
	for found, err := range a.manifests(ctx, object) {
		if err != nil {
			return segment.Manifest{}, err
		}
		last = found.Manifest
	}
	return last, nil
}

// lines reads lines of an object here and there.
type lines struct {
	archive *Archive
	ctx     context.Context
	name    string

	begin int64
	part  []byte // of the object, from begin on
}

// manifest reads the one at an offset, and says how long its line is.
func (l *lines) manifest(offset int64) (segment.Manifest, int64, error) {
	line, err := l.line(offset)
	if err != nil {
		return segment.Manifest{}, 0, err
	}
	manifest, err := segment.ReadManifest(line, l.archive.keys)
	return manifest, int64(len(line)), l.archive.named(l.name, err)
}

func (l *lines) line(offset int64) ([]byte, error) {
	if line := l.known(offset); line != nil {
		return line, nil
	}
	part := int64(firstPart)
	if offset > 0 {
		part = nextPart
	}
	for _, length := range []int64{part, seal.MaxLine} {
		if err := l.read(offset, length); err != nil {
			return nil, err
		}
		if line := l.known(offset); line != nil {
			return line, nil
		}
	}
	return nil, l.archive.named(l.name, fmt.Errorf("%w: no line begins at byte %d", seal.ErrDamaged, offset))
}

// known returns the line at an offset if it was read.
func (l *lines) known(offset int64) []byte {
	if offset < l.begin || offset >= l.begin+int64(len(l.part)) {
		return nil
	}
	rest := l.part[offset-l.begin:]
	if end := bytes.IndexByte(rest, '\n'); end >= 0 {
		return rest[:end+1]
	}
	return nil
}

func (l *lines) read(offset, length int64) error {
	content, err := l.archive.store.Get(l.ctx, l.name, offset, length)
	if err != nil {
		return err
	}
	defer content.Close()
	l.begin = offset
	l.part, err = io.ReadAll(content)
	return err
}
