package backup

import (
	"errors"
	"io"

	"etcd-wrapper/backup/format/segment"
)

// rest makes a segment of what one that waits has beyond the backups in the store, after another member has stored a part of it.
func (s *spooled) rest(manifest segment.Manifest) (segment.Object, error) {
	file, err := s.waiting.Open(manifest.Position)
	if err != nil {
		return segment.Object{}, err
	}
	defer file.Close()
	builder, err := segment.NewBuilder(s.options.Keys, s.head.Start)
	if err != nil {
		return segment.Object{}, err
	}
	stored := segment.Continue(manifest.Before, manifest.Position)
	if err := split(segment.NewReader(file, s.options.Keys), s.head.Revision(), stored, builder); err != nil {
		return segment.Object{}, err
	}
	if digest, _ := stored.End(); digest != s.head.Before {
		return segment.Object{}, s.apart(manifest)
	}
	return builder.Finish(segment.Source{Compacted: manifest.Compacted, Term: manifest.Term, Member: manifest.Member, Applied: manifest.Applied})
}

// split reads a segment: the rows up to a revision continue a chain, and everything behind them goes into another segment.
func split(from *segment.Reader, revision int64, stored *segment.Chain, beyond *segment.Builder) error {
	_, err := from.Next()
	for err == nil {
		var record segment.Record
		if record, err = from.Record(); err == nil {
			err = sort(record, revision, stored, beyond)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func sort(record segment.Record, revision int64, stored *segment.Chain, beyond *segment.Builder) error {
	switch record := record.(type) {
	case *segment.Row:
		at, err := record.Revision()
		if err != nil {
			return err
		}
		if at <= revision {
			return stored.Add(*record)
		}
		return beyond.Row(*record)
	case *segment.Marker:
		if record.Revision <= revision {
			return nil
		}
		return beyond.Marker(*record)
	case *segment.CompactionHash:
		return beyond.CompactionHash(*record)
	case *segment.Bucket:
		return beyond.Bucket(record)
	}
	return nil
}
