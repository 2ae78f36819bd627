package recovery

import (
	"fmt"
	"time"

	"etcd-wrapper/bootstrap/datadir"
)

// beforeTheEnd is how much of its time a broken volume loses at the most, where both ends are known: until when the backups have
// everything, and when etcd last wrote. When a volume ended that is empty, or was put back, nobody knows.
func (r *run) beforeTheEnd() string {
	from := r.everythingUntil()
	if r.verdict == nil || from.IsZero() {
		return ""
	}
	end := datadir.LastWrite(r.member.DataDir)
	if end.IsZero() {
		return ""
	}
	return fmt.Sprintf("; that is at most %s before the end, when etcd last wrote to the volume", rounded(max(0, end.Sub(from))))
}

// everythingUntil is a time from before which nothing is missing in what comes back; zero if that is not known.
func (r *run) everythingUntil() time.Time {
	head, path := r.kept.head, r.kept.path
	switch {
	case head.Empty(), head.Damaged != nil, path.Generation.Number != r.kept.newest.Number, path.Revision != head.Revision():
		return time.Time{}
	case head.Segment != nil:
		return head.Segment.To
	default:
		return head.Full.Time
	}
}

// rounded is a duration for people, and not less than it is.
func rounded(d time.Duration) string {
	if d < time.Minute {
		const tenth = time.Second / 10
		return fmt.Sprintf("%.1f s", (d + tenth - 1).Truncate(tenth).Seconds())
	}
	return (d + time.Second - 1).Truncate(time.Second).String()
}
