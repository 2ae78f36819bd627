package datadirtest

import "encoding/binary"

// Where bbolt keeps what, in bytes.
const (
	pageSize   = 4096
	headerSize = 16              // of a page; elements follow
	rootAt     = headerSize + 16 // of a page with data about the database
	transactAt = rootAt + 32     // likewise
	positionAt = 4               // of an element, then the length of its key
)

// BreakDatabase makes the first bucket of a database start with the page that lists all buckets. When bbolt opens that bucket
// to change it, it panics in its own goroutine.
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
