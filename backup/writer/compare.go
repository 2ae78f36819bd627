package writer

import (
	"errors"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/writer/capture"
)

// compareHead compares the rows of the newest segment, or the last row before a full snapshot, with etcd's.
func (c *chain) compareHead(head archive.Head) (relation.Rows, error) {
	rows, err := c.compare(head.Start)
	if err == nil && rows == relation.Equal && head.Segment != nil {
		return c.compareSegment(*head.Segment)
	}
	return rows, err
}

// compare compares the last rows of a chain with etcd's. They cannot be compared if the chain has no digest of them,
// or if they differ and etcd may have compacted some. Every history starts without rows, so a chain without rows
// matches data without rows and proves nothing about other data.
func (c *chain) compare(end format.Start) (relation.Rows, error) {
	if end.Last == (format.Digest{}) {
		if end.Position.Revision == format.After(1).Revision && c.options.Etcd.Revision() == 1 {
			return relation.Equal, nil
		}
		return relation.NotCompared, nil
	}
	own, complete, err := c.digest(end.Position.Revision - 1)
	switch {
	case err != nil:
		return relation.NotCompared, err
	case own == end.Last:
		return relation.Equal, nil
	case complete:
		return relation.Different, nil
	default:
		return relation.NotCompared, nil
	}
}

// compareSegment compares the rows of a segment with etcd's: two copies of the data may happen to have an identical last revision. Rows
// that etcd has compacted count as equal.
func (c *chain) compareSegment(with format.Manifest) (relation.Rows, error) {
	digests := format.Continue(with.Before, with.Position)
	for more := true; more; {
		rows, err := c.reader.ReadRows(capture.Request{From: digests.Revision() + 1, UpTo: with.End, Limit: chunk})
		var gap *capture.CompactedError
		if errors.As(err, &gap) {
			return relation.Equal, nil
		}
		if err = errors.Join(err, addAll(digests, rows.Rows)); err != nil {
			return relation.NotCompared, err
		}
		more = rows.More
	}
	if own, _ := digests.End(); own != with.After {
		return relation.Different, nil
	}
	return relation.Equal, nil
}

// digest returns the digest of the remaining rows of a revision, and reports whether none is compacted.
func (c *chain) digest(revision int64) (own format.Digest, complete bool, err error) {
	rows, err := c.reader.ReadRows(capture.Request{From: revision, UpTo: revision, Limit: chunk, Left: true})
	digests := format.Continue(format.Digest{}, format.Position{Revision: revision})
	err = errors.Join(err, addAll(digests, rows.Rows))
	_, own = digests.End()
	return own, rows.Compacted < revision, err
}

func addAll(digests *format.Chain, rows []format.Row) error {
	for _, row := range rows {
		if err := digests.Add(row); err != nil {
			return err
		}
	}
	return nil
}
