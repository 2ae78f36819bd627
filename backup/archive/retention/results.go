package retention

import (
	"errors"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// results deletes what was found out about fulls that are gone, and about revisions that are no longer promised.
func (e *execution) results(p Plan) error {
	generation, stays := 0, map[string]bool{}
	for _, item := range p.Items {
		generation = item.Generation // the newest is the last one
		if item.Kind == Full && !item.Goes {
			stays[item.Name] = true
		}
	}
	prefix := archive.GenerationPrefix(generation)
	return errors.Join(
		e.sweep(prefix+"verified/", func(name string) bool { return p.ofNoFull(name, stays) }),
		e.sweep(prefix+"tested/", p.ofOldTest))
}

// labelLength is that of the name of every full.
var labelLength = len(archive.FullName(0, time.Time{}))

// ofNoFull tells whether a result is of a full that is gone; one that is younger than the plan may be of a full that it does not
// know.
func (p Plan) ofNoFull(name string, stays map[string]bool) bool {
	if len(name) < labelLength {
		return false
	}
	_, at := parseLabel(name[:labelLength])
	return !at.IsZero() && at.Before(p.From) && !stays[name[:labelLength]]
}

func (p Plan) ofOldTest(name string) bool {
	text, _, _ := strings.Cut(name, ".")
	at, err := time.Parse("20060102T150405Z", text)
	return err == nil && at.Before(p.From.Add(-week))
}

// sweep deletes what is below a prefix and fits. What is locked stays for now.
func (e *execution) sweep(prefix string, fits func(name string) bool) error {
	var names []string
	for object, err := range e.store.List(e.ctx, prefix, "") {
		if err != nil {
			return err
		}
		if fits(strings.TrimPrefix(object.Name, prefix)) {
			names = append(names, object.Name)
		}
	}
	for _, name := range names {
		if err := e.delete(name); err != nil && !errors.Is(err, store.ErrLocked) {
			return err
		}
	}
	return nil
}
