package archive

import "etcd-wrapper/backup/format/segment"

// Term is that of raft's in which its end was written; 0 if there is none.
func (h Head) Term() uint64 {
	switch {
	case h.Segment != nil:
		return h.Segment.Term
	case h.Full != nil:
		return h.Full.Term
	default:
		return 0
	}
}

// Writer is the member that wrote its end: etcd's id, hexadecimal; empty if there is none.
func (h Head) Writer() string {
	switch {
	case h.Segment != nil:
		return h.Segment.Member
	case h.Full != nil:
		return h.Full.Member
	default:
		return ""
	}
}

// Outdates tells whether a segment that could go on from the end states what is stated newer there: it has no rows, which have their
// place by their revisions, but leases or users as a leader knew them before the one that wrote the end, or a member that lagged.
func (h Head) Outdates(next segment.Manifest) bool {
	return next.Rows == 0 && (next.Term < h.Term() || next.Applied != 0 && next.Applied < h.Applied)
}
