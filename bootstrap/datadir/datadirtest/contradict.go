package datadirtest

import "encoding/binary"

// Offsets in bbolt's pages, in bytes.
const (
	pageSize   = 4096
	headerSize = 16              // size of a page header, which the page's elements follow
	rootAt     = headerSize + 16 // offset in a meta page
	transactAt = rootAt + 32     // offset in a meta page
	positionAt = 4               // offset in an element, followed by the length of its key
)

// BreakDatabase makes the first bucket of a database start with the page that lists all buckets. bbolt panics in its
// own goroutine when it opens that bucket for a change.
func BreakDatabase(database []byte) {
	meta := database
	if transaction(database[pageSize:]) > transaction(database) {
		meta = database[pageSize:]
	}
	root := binary.LittleEndian.Uint64(meta[rootAt:])
	element := database[root*pageSize+headerSize:]
	bucket := binary.LittleEndian.Uint32(element[positionAt:]) + binary.LittleEndian.Uint32(element[positionAt+4:])
	binary.LittleEndian.PutUint64(element[bucket:], root)
}

func transaction(meta []byte) uint64 { return binary.LittleEndian.Uint64(meta[transactAt:]) }
