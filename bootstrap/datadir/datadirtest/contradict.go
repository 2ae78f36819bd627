package datadirtest

import "encoding/binary"

// Byte offsets in bbolt pages.
const (
	pageSize   = 4096
	headerSize = 16              // size of the page header
	rootAt     = headerSize + 16 // offset of the root page number in a meta page
	transactAt = rootAt + 32     // offset of the transaction number in a meta page
	positionAt = 4               // offset of the key position in an element; the key length follows
)

// BreakDatabase points the first bucket of a database at the page that lists all buckets. When bbolt opens that
// bucket for writing, it panics in one of its own goroutines.
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
