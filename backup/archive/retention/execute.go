package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// Deletion is the result of executing a plan.
type Deletion struct {
	Objects int   `json:"objects"` // number of deleted objects
	Bytes   int64 `json:"bytes"`   // deleted bytes, if known
	Locked  int   `json:"locked"`  // number of locked items, which are deleted later
}

// Execute deletes the items of the plan, oldest first, and calls gone (unless nil) for each deleted item. Before the
// first deletion, Execute reads the full snapshots that replace the deleted items. The error is store.ErrDenied if
// deletions are not permitted. A plan may be executed again after a crash, and concurrently by multiple processes.
func (p Plan) Execute(ctx context.Context, a *archive.Archive, gone func(Item)) (done Deletion, err error) {
	goes := p.Deletes()
	if len(goes) == 0 {
		return done, nil
	}
	if err := p.verify(ctx, a); err != nil {
		return done, fmt.Errorf("nothing was deleted: %w", err)
	}
	run := execution{ctx: ctx, store: a.Store(), done: &done}
	for _, item := range goes {
		names, err := run.names(item)
		if err == nil {
			err = run.delete(names...)
		}
		switch {
		case errors.Is(err, store.ErrLocked):
			done.Locked++
			continue
		case err != nil:
			return done, err
		}
		done.Bytes += item.Bytes
		if item.Kind == Full {
			run.fulls = append(run.fulls, item.Name)
		}
		if gone != nil {
			gone(item)
		}
	}
	newest := archive.GenerationPrefix(p.Items[len(p.Items)-1].Generation) // the newest generation comes last
	ofNone := func(name string) bool { return run.isOrphaned(name, p) }
	return done, errors.Join(run.sweep(newest+"verified/", ofNone), run.sweep(newest+"tested/", p.ofOldTest))
}

// verify reads the full snapshots that make the deleted items redundant.
func (p Plan) verify(ctx context.Context, a *archive.Archive) error {
	for _, item := range p.Items {
		if !item.proof || item.Goes {
			continue
		}
		full, err := a.Full(ctx, item.Generation, item.Name)
		if err == nil {
			err = present(ctx, a.Store(), archive.DataName(item.Generation, item.Name), full.Data.Bytes)
		}
		if err != nil {
			return fmt.Errorf("cannot read required full snapshot %s: %w", item.Name, err)
		}
	}
	return nil
}

// present checks that an object is complete by reading its last byte.
func present(ctx context.Context, s store.Store, name string, size int64) error {
	reader, err := s.Get(ctx, name, max(size-1, 0), 1)
	if err != nil {
		return err
	}
	defer reader.Close()
	if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil && size > 0 {
		return fmt.Errorf("%s in %s is truncated: %w", name, s, err)
	}
	return nil
}

// execution is the state of a call to Execute.
type execution struct {
	ctx   context.Context
	store store.Store
	done  *Deletion
	fulls []string // names of deleted full snapshots
}

// names returns the object names of an item in deletion order: manifests first, because data without a manifest is
// ignored, and generation.json last.
func (e *execution) names(item Item) ([]string, error) {
	switch item.Kind { //nolint:exhaustive // the others list their names
	case Full:
		return []string{archive.ManifestName(item.Generation, item.Name), archive.DataName(item.Generation, item.Name)}, nil
	case Generation:
		var manifests, others []string
		for object, err := range e.store.List(e.ctx, item.Name, "") {
			switch {
			case err != nil:
				return nil, err
			case strings.HasSuffix(object.Name, "/manifest.json"):
				manifests = append(manifests, object.Name)
			case object.Name != item.Name+"generation.json":
				others = append(others, object.Name)
			}
		}
		return slices.Concat(manifests, others, []string{item.Name + "generation.json"}), nil
	default:
		return item.names, nil
	}
}

// delete deletes objects and stops at the first error.
func (e *execution) delete(names ...string) error {
	for _, name := range names {
		if err := e.store.Delete(e.ctx, name); err != nil {
			return err
		}
		e.done.Objects++
	}
	return nil
}

// isOrphaned reports whether a test result belongs to a deleted full snapshot. The result of a locked snapshot is
// kept, because the snapshot would look usable without the result. A result that is newer than the plan may belong to
// a full snapshot that is not in the plan.
func (e *execution) isOrphaned(name string, p Plan) bool {
	full, _, _ := strings.Cut(name, "_")
	_, at, err := archive.ParseFullName(full)
	known := func(i Item) bool { return i.Kind == Full && i.Name == full }
	return slices.Contains(e.fulls, full) || err == nil && at.Before(p.From) && !slices.ContainsFunc(p.Items, known)
}

// ofOldTest reports whether a result belongs to an old restore test.
func (p Plan) ofOldTest(name string) bool {
	at, err := time.Parse("20060102T150405Z.json", name)
	return err == nil && at.Before(p.From.Add(-week))
}

// sweep deletes the objects with a prefix whose names fit, except for locked objects.
func (e *execution) sweep(prefix string, fits func(name string) bool) error {
	for object, err := range e.store.List(e.ctx, prefix, "") {
		if err == nil && fits(strings.TrimPrefix(object.Name, prefix)) {
			err = e.delete(object.Name)
		}
		if err != nil && !errors.Is(err, store.ErrLocked) {
			return err
		}
	}
	return nil
}
