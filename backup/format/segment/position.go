package segment

import (
	"cmp"
	"fmt"
)

// maxPart bounds the segments without rows at one revision. Segments are made once a second at most: that is eleven days.
const maxPart = 999_999

// Position is where a segment begins, and names it. Positions have the order of history.
type Position struct {
	Revision int64 `json:"revision"` // the first one that is not covered yet
	Part     int   `json:"part"`     // how many segments without rows stand before this one at that revision
}

// String is the position in names of objects: the order of such strings is that of positions.
func (p Position) String() string { return fmt.Sprintf("%019d.%06d", p.Revision, p.Part) }

// ParsePosition undoes String.
func ParsePosition(s string) (Position, error) {
	var p Position
	if _, err := fmt.Sscanf(s, "%019d.%06d", &p.Revision, &p.Part); err != nil || p.String() != s || !p.Valid() {
		return Position{}, fmt.Errorf("%q is not a position", s)
	}
	return p, nil
}

// Valid tells whether a segment can begin there.
func (p Position) Valid() bool { return p.Revision > 0 && p.Part >= 0 && p.Part <= maxPart }

// Compare is negative if p comes before other, and positive if it comes behind.
func (p Position) Compare(other Position) int {
	return cmp.Or(cmp.Compare(p.Revision, other.Revision), cmp.Compare(p.Part, other.Part))
}

// IsZero tells whether p is no position.
func (p Position) IsZero() bool { return p == Position{} }

// After is the position behind revision.
func After(revision int64) Position { return Position{Revision: revision + 1} }
