package hashkv

import (
	"cmp"
	"hash/maphash"
	"maps"
	"math"
	"slices"
)

// tableSize is how many keys are in the table at a time; 256 Ki take 12 MiB at most.
const tableSize = 256 << 10

// fingerprint stands for a key: 128 bits with seeds of this process, so that no two keys share one.
type fingerprint struct{ high, low uint64 }

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func fingerprintOf(key []byte) fingerprint {
	return fingerprint{maphash.Bytes(seeds[0], key), maphash.Bytes(seeds[1], key)}
}

// part is a range of the keys' fingerprints, both ends included.
type part struct{ from, to uint64 }

func (p part) has(f fingerprint) bool { return p.from <= f.high && f.high <= p.to }

func (p part) last() bool { return p.to == math.MaxUint64 }

// next is the part behind p, and as large.
func (p part) next() part {
	from := p.to + 1
	return part{from, from + min(p.to-p.from, math.MaxUint64-from)}
}

func (p part) half() part { return part{p.from, p.from + (p.to-p.from)/2} }

// newest marks the rows that are the newest of their key at a revision, and no deletion. Each pass over the rows does one
// part of the keys, as many as the table has room for.
func (s scan) newest(revision int64) (kept bits, err error) {
	for p := (part{0, math.MaxUint64}); ; p = p.next() {
		if p, err = s.pass(p, &kept, revision); err != nil || p.last() {
			return kept, err
		}
	}
}

// pass does a part of the keys and returns which: it is halved as often as the table is full. What was marked until then
// of the keys that fall out is put right in their own pass.
func (s scan) pass(p part, kept *bits, revision int64) (part, error) {
	table := make(map[fingerprint]uint32)
	for r, err := range s.rows(revision) {
		if err != nil {
			return p, err
		}
		key, err := r.userKey()
		if err != nil {
			return p, err
		}
		if print := fingerprintOf(key); p.has(print) {
			r.replace(table, print, kept)
		}
		for len(table) > cmp.Or(s.tableSize, tableSize) {
			p = p.half()
			maps.DeleteFunc(table, func(f fingerprint, _ uint32) bool { return !p.has(f) })
		}
	}
	return p, nil
}

// replace makes r the newest row of its key.
func (r row) replace(table map[fingerprint]uint32, print fingerprint, kept *bits) {
	if before, found := table[print]; found {
		kept.clear(before)
	}
	if r.tombstone {
		delete(table, print)
		return
	}
	table[print] = r.ordinal
	kept.set(r.ordinal)
}

// bits has one for each row, by its ordinal.
type bits []uint64

func (b *bits) set(i uint32) {
	for len(*b) <= int(i/64) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b *bits) clear(i uint32) { (*b)[i/64] &^= 1 << (i % 64) }

func (b bits) has(i uint32) bool { return int(i/64) < len(b) && b[i/64]&(1<<(i%64)) != 0 }

func (b bits) any() bool { return slices.ContainsFunc(b, func(word uint64) bool { return word != 0 }) }
