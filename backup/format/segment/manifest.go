package segment

import (
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/format/seal"
)

// Kind is that of a segment's statement.
const Kind = "segment"

// Manifest is the statement that every segment begins with.
type Manifest struct {
	seal.Heading
	Cluster    string    `json:"cluster"`            // the store's
	Generation int       `json:"generation"`         // the history between two restores
	Position   Position  `json:"position"`           // where it begins
	End        int64     `json:"end"`                // the last revision that it covers; Position.Revision-1 without rows
	Rows       int64     `json:"rows"`               // how many
	RawBytes   int64     `json:"raw_bytes"`          // of the records, before compression
	Before     Digest    `json:"before"`             // the chain's digest at Position
	After      Digest    `json:"after"`              // the chain's digest behind End
	Last       Digest    `json:"last,omitzero"`      // over the rows of the last revision with rows up to End; zero if unknown
	Compacted  int64     `json:"compacted"`          // etcd's scheduled compaction, read with the rows; 0 before the first one
	From       time.Time `json:"from,omitzero"`      // the first marker's time; zero without markers
	To         time.Time `json:"to,omitzero"`        // the last marker's time
	Term       uint64    `json:"term"`               // raft's
	Member     string    `json:"member"`             // who wrote it: etcd's member id, hexadecimal
	Session    string    `json:"session,omitempty"`  // of the process that wrote it: random, hexadecimal
	Released   bool      `json:"released,omitzero"`  // its writer has ended in order: it adds nothing behind it
	Opens      Position  `json:"opens,omitzero"`     // a full snapshot begins another chain, which goes on there; zero if none does
	Ends       *Ending   `json:"ends,omitempty"`     // the generation ends here: nothing follows, ever; nil if it does not
	Applied    uint64    `json:"applied,omitzero"`   // raft's index that its writer had applied, as in Source, or that of the segment before
	Buckets    []string  `json:"buckets,omitempty"`  // names of the small buckets inside
	Body       Body      `json:"body"`               // what follows the line
	Encrypted  bool      `json:"encrypted,omitzero"` // with age
}

// Ending is what the last object of a generation says of who goes on. It is made at the position where the next segment
// would go, so that no segment can follow what a restore has read.
type Ending struct {
	Successor int       `json:"successor"` // the generation that goes on
	Nonce     string    `json:"nonce"`     // of who ends it: random, hexadecimal
	At        time.Time `json:"at"`
}

// Next is where the next segment begins.
func (m Manifest) Next() Position {
	if m.Rows > 0 {
		return After(m.End)
	}
	return Position{Revision: m.Position.Revision, Part: m.Position.Part + 1}
}

// Start is what the next segment goes on from.
func (m Manifest) Start() Start {
	return Start{Cluster: m.Cluster, Generation: m.Generation, Position: m.Next(), Before: m.After, Last: m.Last, Applied: m.Applied}
}

// maxRaw bounds a segment's records in bytes: 8 MiB and one revision, which may have deleted all keys there were.
const maxRaw = 16 << 30

// check finds what contradicts itself.
func (m Manifest) check() error {
	switch {
	case m.Cluster == "" || m.Generation <= 0 || !m.Position.Valid():
		return errors.New("it doesn't say what it is of")
	case m.Rows < 0 || m.RawBytes < 0 || m.RawBytes > maxRaw || m.Body.Bytes < 0 || m.Body.Bytes > maxRaw:
		return fmt.Errorf("it claims %d rows and %d bytes", m.Rows, m.RawBytes)
	case m.Rows > 0 && (m.Released || !m.Opens.IsZero() || m.Ends != nil):
		return errors.New("it says that something ends, and has rows")
	case m.Ends != nil && (m.Ends.Successor <= m.Generation || m.Ends.Nonce == ""):
		return errors.New("it does not say who goes on")
	case m.Rows == 0 && (m.End != m.Position.Revision-1 || m.Before != m.After),
		m.Rows > 0 && (m.End < m.Position.Revision || m.Last == Digest{}):
		return fmt.Errorf("it has %d rows from %s to %d", m.Rows, m.Position, m.End)
	}
	return nil
}
