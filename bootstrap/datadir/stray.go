package datadir

import "go.etcd.io/etcd/server/v3/storage/wal"

// checkStrays refuses a log beside which a file lies that goes on where the log ends: somebody gave a segment another
// name, and etcd would serve without what is in it. What can't be read as a segment is none.
func checkStrays(m *member, last uint64) error {
	for _, name := range m.strays() {
		if !isRegular(m.segment(name)) {
			continue
		}
		ends := uint64(0)
		_ = readSegment(m.segment(name), func(s *segment) error { // see above
			for record, err := range s.records() {
				if err != nil {
					return err
				}
				if record.kind == wal.EntryType {
					ends = max(ends, varint(record.data, 3))
				}
			}
			return nil
		})
		if ends > last {
			return strayEntries.because(m.segment(name), ends, last)
		}
	}
	return nil
}
