package backups

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// copyMark is the object that Copy creates first in every location. The store of a running cluster does not contain
// it, so Copy never mistakes that store for a copy, even if both contain the same objects.
const copyMark = "copy.json"

// maxMark is the maximum size of the object copyMark in bytes.
const maxMark = 4 << 10

// mark ensures that the location is a copy: it adds the mark if the location contains no backups, and returns an
// error if the location contains backups but no mark.
func (c *copier) mark(ctx context.Context, copies map[string]int64) error {
	if _, has := copies[copyMark]; has {
		return nil
	}
	for name := range copies {
		if name == archive.ClusterName || strings.HasPrefix(name, "gen/") || strings.HasPrefix(name, "reservation/") {
			return fmt.Errorf("%s %w %s: it contains backups that backup copy did not create; copy to another location", c.to, ErrNotCopy, c.from)
		}
	}
	line, err := json.Marshal(map[string]string{"id": archive.NewID(), "copy_of": c.from.String()})
	if err != nil {
		return err
	}
	if _, err = store.PutOnce(ctx, c.to, copyMark, strings.NewReader(string(line)+"\n")); errors.Is(err, store.ErrExists) {
		return nil // another process is copying to this location and has created the mark
	}
	return err
}

// checkDistinct returns an error if the location is the store itself or a folder in the store. In either case, the
// listing of the store contains the mark that was added to the location.
func (c *copier) checkDistinct(ctx context.Context, originals map[string]int64) error {
	mark, err := content(ctx, c.to, copyMark)
	if err != nil {
		return err
	}
	for name := range originals {
		if name != copyMark && !strings.HasSuffix(name, "/"+copyMark) {
			continue
		}
		found, err := content(ctx, c.from, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if found == mark {
			return fmt.Errorf("%s %w %s: it is the same location or a folder inside it; copy to another location", c.to, ErrNotCopy, c.from)
		}
	}
	return nil
}

func content(ctx context.Context, s store.Store, name string) (string, error) {
	reader, err := s.Get(ctx, name, 0, maxMark)
	if err != nil {
		return "", err
	}
	defer reader.Close()
	text, err := io.ReadAll(reader)
	return string(text), err
}

// A history lists the objects in a store and the generations to which they belong, as derived from their names.
type history struct {
	sizes       map[string]int64
	generations map[int]*sequence
	reserved    int64 // highest reserved revision
}

// A sequence describes the backups of a generation, as derived from object names.
type sequence struct {
	objects []archive.Object // original and merged segments
	full    int64            // revision of the newest full snapshot
}

func newHistory(sizes map[string]int64) history {
	h := history{sizes: sizes, generations: map[int]*sequence{}}
	for name := range sizes {
		parts := strings.Split(name, "/")
		if revision, ok := strings.CutPrefix(name, "reservation/"); ok {
			number, _ := strconv.ParseInt(revision, 10, 64) // invalid names are ignored
			h.reserved = max(h.reserved, number)
		}
		if len(parts) < 3 || parts[0] != "gen" {
			continue
		}
		number, err := strconv.Atoi(parts[1])
		if err != nil || archive.GenerationPrefix(number) != "gen/"+parts[1]+"/" {
			continue
		}
		if h.generations[number] == nil {
			h.generations[number] = &sequence{}
		}
		h.generations[number].add(number, parts[2:])
	}
	return h
}

// add adds an object to the sequence. parts is the object's name after the generation, split at slashes.
func (g *sequence) add(number int, parts []string) {
	switch kind := parts[0]; {
	case len(parts) < 2:
	case kind == "full":
		revision, _, _ := archive.ParseFullName(parts[1]) // 0 if the name is invalid
		g.full = max(g.full, revision)
	case kind == string(archive.Segment) || kind == string(archive.Minute) || kind == string(archive.Hour):
		level := archive.Level(kind)
		if start, next, err := archive.ParseObject(level, parts[1]); err == nil {
			g.objects = append(g.objects, archive.Object{Level: level, Generation: number, Start: start, Next: next})
		}
	}
}

// compare returns an error if the copy contains anything that the store never contained: an object of an unknown
// generation, an object after the end of a generation, or an object with different content. Objects that have since
// been merged or pruned in the store are accepted.
func (c *copier) compare(ctx context.Context, original, copied history) error {
	for _, name := range slices.Sorted(maps.Keys(copied.sizes)) {
		size, has := original.sizes[name]
		if has && size != copied.sizes[name] && name != copyMark && !strings.HasPrefix(name, "probe/") {
			return c.contentError(name)
		}
	}
	if err := c.compareObject(ctx, original, copied, archive.ClusterName); err != nil {
		return err
	}
	newest := 0
	for number := range original.generations {
		newest = max(newest, number)
	}
	for _, number := range slices.Sorted(maps.Keys(copied.generations)) {
		stored := original.generations[number]
		if stored == nil {
			if number < newest {
				continue // the generation was pruned
			}
			return c.written(fmt.Sprintf("generation %d", number))
		}
		if err := c.compareObject(ctx, original, copied, archive.GenerationPrefix(number)+"generation.json"); err != nil {
			return err
		}
		if err := c.compareGeneration(ctx, original, stored, copied.generations[number]); err != nil {
			return err
		}
	}
	if copied.reserved > original.reserved {
		return c.written(fmt.Sprintf("a reservation of revision %d", copied.reserved))
	}
	return nil
}

// written returns the error for an object that the copy contains but the store never contained.
func (c *copier) written(what string) error {
	return fmt.Errorf("%s %w %s: it contains %s, which %s does not: a cluster has written to it; copy to another location", c.to, ErrNotCopy, c.from, what, c.from)
}

// compareObject compares the copy of an object with the original, at most once per run.
func (c *copier) compareObject(ctx context.Context, original, copied history, name string) error {
	if _, has := copied.sizes[name]; !has {
		return nil
	}
	if _, has := original.sizes[name]; !has {
		return c.written(name)
	}
	if c.checked[name] {
		return nil
	}
	inStore, err := digest(ctx, c.from, name)
	if errors.Is(err, store.ErrNotFound) {
		c.stale = true // the object was pruned or merged after the store was listed
		return nil
	}
	if err != nil {
		return err
	}
	inCopy, err := digest(ctx, c.to, name)
	if err == nil && inStore != inCopy {
		err = c.contentError(name)
	}
	c.checked[name] = err == nil
	return err
}

// compareGeneration compares the last segment of the copy with the store. Comparing one segment is enough, because it
// contains a digest of all earlier segments.
func (c *copier) compareGeneration(ctx context.Context, original history, stored, copied *sequence) error {
	if len(copied.objects) == 0 {
		return nil
	}
	byEnd := func(a, b archive.Object) int {
		return cmp.Or(a.NamedEnd().Compare(b.NamedEnd()), a.Start.Compare(b.Start))
	}
	last := slices.MaxFunc(copied.objects, byEnd)
	if _, has := original.sizes[last.Name()]; has {
		return c.compareObject(ctx, original, history{sizes: map[string]int64{last.Name(): 0}}, last.Name())
	}
	if c.checked[last.Name()] {
		return nil
	}
	segments, err := archive.New(c.to, &format.Keys{}).VerifyObject(ctx, last)
	if err != nil {
		return fmt.Errorf("cannot compare %s with %s: %w", c.to, c.from, err)
	}
	newest := segments[len(segments)-1]
	pruned := newest.Position.Revision <= stored.full
	for _, object := range stored.objects {
		if object.Level != archive.Segment && object.Start.Compare(newest.Position) <= 0 && newest.Position.Compare(object.Next) < 0 {
			merged, err := archive.New(c.from, &format.Keys{}).VerifyObject(ctx, object)
			if errors.Is(err, store.ErrNotFound) {
				c.stale = true
				return nil
			}
			if err != nil {
				return fmt.Errorf("cannot compare %s with %s: %w", c.to, c.from, err)
			}
			same := func(m format.Manifest) bool {
				return m.Position == newest.Position && m.After == newest.After && m.Ends == nil
			}
			if newest.Ends == nil && slices.ContainsFunc(merged, same) {
				c.checked[last.Name()] = true
				return nil
			}
			return c.written(last.Name())
		}
		pruned = pruned && object.NamedEnd().Compare(newest.Position) > 0
	}
	if newest.Ends != nil || !pruned {
		return c.written(last.Name())
	}
	c.checked[last.Name()] = true
	return nil
}
