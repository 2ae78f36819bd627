package writer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/internal/durable"
	"etcd-wrapper/internal/smallfile"
)

// lineage is the generations that etcd's data are known to have gone with, oldest first.
type lineage []origin

// origin is a history that data went along with: a generation, which begins once. Copies of a store have the same ones.
type origin struct {
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Created    time.Time `json:"created"`
	Left       bool      `json:"left,omitempty"` // the data took another one
}

func originOf(g archive.Generation) origin {
	return origin{Cluster: g.Cluster, Generation: g.Number, Created: g.Created.UTC()}
}

// String is a line of the file.
func (o origin) String() string {
	line, _ := json.Marshal(o) // which has nothing that could fail
	return string(line)
}

// of tells whether both are about one generation.
func (o origin) of(other origin) bool {
	return o.Cluster == other.Cluster && o.Generation == other.Generation && o.Created.Equal(other.Created)
}

const (
	mostOrigins  = 16      // that are remembered: there is one for each store that the data were ever kept in
	lineageLimit = 4 << 10 // bytes of the file
)

// recall reads which ways the data are known to have gone, oldest first. Whoever knows better may have written it.
func (w *Writer) recall() {
	content, err := smallfile.ReadHere(w.options.LineageFile, lineageLimit)
	var known lineage
	for lines := json.NewDecoder(bytes.NewReader(content)); err == nil && lines.More(); {
		var one origin
		if err = lines.Decode(&one); err == nil {
			known = append(known, one)
		}
	}
	switch {
	case err == nil:
		w.lineage = known
	case !errors.Is(err, fs.ErrNotExist):
		w.options.Log.Warn().Err(err).Str("file", w.options.LineageFile).Msg("backups: it cannot be read which backups etcd's data go with")
	}
}

// goAlong remembers that the data go with the present generation.
func (w *Writer) goAlong() { w.goes(originOf(w.remote.generation)) }

// goAstray remembers that they don't, for when nothing shows it any more.
func (w *Writer) goAstray() {
	left := originOf(w.remote.generation)
	left.Left = true
	w.goes(left)
}

func (w *Writer) goes(now origin) {
	if count := len(w.lineage); count > 0 && w.lineage[count-1].String() == now.String() {
		return
	}
	w.lineage = append(slices.DeleteFunc(slices.Clone(w.lineage), now.of), now)
	w.lineage = w.lineage[max(0, len(w.lineage)-mostOrigins):]
	var lines strings.Builder
	for _, one := range w.lineage {
		lines.WriteString(one.String() + "\n")
	}
	if err := durable.Replace(w.options.LineageFile, []byte(lines.String())); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: it is not remembered which backups etcd's data go with")
	}
}

// cameAlong tells whether the data are known to go with the present generation. The id of a restored cluster is nobody else's, so
// there it is enough that nothing is known to the contrary.
func (w *Writer) cameAlong() bool {
	along := originOf(w.remote.generation)
	if known, _ := w.went(along.of); known {
		return true
	}
	w.recall()
	known, left := w.went(along.of)
	return known || w.remote.generation.Parent != 0 && !left
}

// went tells what was remembered last of a way.
func (w *Writer) went(is func(origin) bool) (along, left bool) {
	for _, one := range slices.Backward(w.lineage) {
		if is(one) {
			return !one.Left, one.Left
		}
	}
	return false, false
}

// related tells whether the chain is of the history that this member's data are of. That both have one cluster id says little: etcd
// computes it of the configuration, so two clusters of one configuration have the same, and so have data that were rolled back. But a
// revision has the same rows for ever, so those of the last one in the store are compared with this member's own.
//
// Where etcd has compacted these, as it does while a store is away for long, the data must have gone with the generation before, as far
// as that is remembered beside them. Older rows that are left would not do instead: clusters that were set up alike have
// the same, and a writer that encrypts cannot always read it. A member that looked before there was a chain has seen it begin.
func (w *Writer) related(ctx context.Context, head archive.Head) bool {
	if head.Empty() && head.PastEnd.IsZero() {
		return true
	}
	compared, same, err := w.compare(head.Start)
	if err == nil && same && head.Segment != nil {
		same, err = w.alike(*head.Segment)
	}
	switch {
	case err != nil:
		w.failed(aboutLook, "cannot compare etcd's data with its backups", err)
		return false
	case compared && !same:
		w.goAstray()
		w.take(ctx, refused, payload{err: fmt.Errorf("revision %d in %s is not the one in etcd's data, though both are cluster %s's: the data took another way than its backups, as after its volume was rolled back; restore the newest backup, or point --backup-store at another place",
			head.Revision(), w.remote.archive, head.Cluster)})
		return false
	case !compared && !w.remote.looked.none && !w.cameAlong():
		w.take(ctx, unrelated, payload{err: fmt.Errorf("%s may have the backups of another cluster of the same configuration, since both have the id %s: they end with revision %d, which cannot be compared with etcd's data any more, and these were not seen to go with them before; point --backup-store at another place, or, if you know that they are of this cluster, write %s into %s",
			w.remote.archive, w.remote.generation.Cluster, max(0, head.Revision()), originOf(w.remote.generation), w.options.LineageFile)})
		return false
	}
	w.goAlong()
	return true
}

// compare compares the last rows of a chain with etcd's. They cannot be compared if the chain tells nothing of them, or if they differ
// and etcd may have compacted some. Every history begins without any: a chain that has none is of data that have none, either, and says
// nothing about others.
func (w *Writer) compare(end segment.Start) (compared, same bool, err error) {
	if end.Last == (segment.Digest{}) {
		none := end.Position.Revision == segment.After(1).Revision && w.options.Etcd.Revision() == 1
		return none, none, nil
	}
	own, whole, err := w.digest(end.Position.Revision - 1)
	same = err == nil && own == end.Last
	return same || err == nil && whole, same, err
}

// alike compares all rows of a segment with etcd's, as far as these are not compacted: clusters that do the same may have a last revision
// that is the same.
func (w *Writer) alike(with segment.Manifest) (bool, error) {
	chain := segment.Continue(with.Before, with.Position)
	for more := true; more; {
		rows, err := w.reader.Since(capture.Request{From: chain.Revision() + 1, UpTo: with.End, Limit: chunk})
		var gap *capture.GapError
		if errors.As(err, &gap) {
			return true, nil
		}
		for _, row := range rows.Rows {
			if err == nil {
				err = chain.Add(row)
			}
		}
		if err != nil {
			return false, err
		}
		more = rows.More
	}
	own, _ := chain.End()
	return own == with.After, nil
}

// digest is that of the rows of a revision, as far as they are left, and tells whether all are.
func (w *Writer) digest(revision int64) (own segment.Digest, whole bool, err error) {
	rows, whole, err := w.reader.Left(revision)
	chain := segment.Continue(segment.Digest{}, segment.Position{Revision: revision})
	for _, row := range rows {
		if err == nil {
			err = chain.Add(row)
		}
	}
	_, own = chain.End()
	return own, whole, err
}
