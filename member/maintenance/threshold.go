package maintenance

import "fmt"

// Threshold says how much of a database must be free before it is defragmented. The zero Threshold means never, unless
// the alarm NOSPACE is raised.
type Threshold struct {
	Free float64 // the part of the file that is free, from 0 to 1
	Min  int64   // bytes that are free
}

// exceeded reports whether a file of size bytes, of which inUse hold data, is worth a defragmentation.
func (t Threshold) exceeded(size, inUse int64) bool {
	free := size - inUse
	return t != (Threshold{}) && free > 0 && free >= t.Min && float64(free) >= t.Free*float64(size)
}

// AtStart is what etcd's setting bootstrap-defrag-threshold-megabytes, the mebibytes that must be free in a file for etcd to
// defragment it before it serves, has to be so that a database of size bytes, in a directory, is treated by the threshold; 0
// turns it off. It is 0, too, where the copy would find too little room on the volume, since etcd does not start when its
// defragmentation fails, and where it could be expected to take longer than the longest pause.
func (k *Keeper) AtStart(dir string, size int64) uint {
	t := k.options.Threshold
	needed := max(t.Min, int64(t.Free*float64(size)))
	kept := size - needed // at most, if etcd defragments at all
	left := room(dir)
	if t == (Threshold{}) || kept < 0 || left < 0 || left < size+spare || k.pace.expected(kept) > k.options.MaxPause {
		return 0
	}
	return uint(max(1, (needed+mebibyte-1)/mebibyte))
}

// AtStartCopied says how far etcd's defragmentation before it serves has come, as a clause about etcd; empty if there is none.
func AtStartCopied(dir string) string {
	if done := copied(dir); done > 0 {
		return "defragments its database before it serves: " + inWords(done) + " are copied"
	}
	return ""
}

const mebibyte = 1 << 20

// inWords is a size for people.
func inWords(count int64) string {
	switch {
	case count < mebibyte:
		return fmt.Sprintf("%d KiB", count>>10)
	case count < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(count)/mebibyte)
	default:
		return fmt.Sprintf("%.1f GiB", float64(count)/(1<<30))
	}
}
