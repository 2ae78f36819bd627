package datadirtest

import "encoding/binary"

// Offsets in bbolt's pages, in bytes.
const (
	pageSize   = 4096
	headerSize = 16              // of a page, followed by its elements
	rootAt     = headerSize + 16 // in a meta page
	transactAt = rootAt + 32     // in a meta page
	positionAt = 4               // in an element, followed by the length of its key
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
