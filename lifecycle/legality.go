package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/looplab/fsm"
)

// legality is the looplab/fsm machine made from the table. The rules decide, this machine must agree: it refuses every
// move that is not an edge of the table. It is the only place that knows the library.
type legality struct {
	machine *fsm.FSM
}

func newLegality(table []Row) *legality {
	events := make(fsm.Events, 0, len(table))
	for i := range table {
		row := &table[i]
		events = append(events, fsm.EventDesc{Name: row.edge(), Src: []string{string(row.From)}, Dst: string(row.To)})
	}
	return &legality{machine: fsm.NewFSM(string(Query), events, nil)}
}

// take walks the edge of a row. The error means that the machine is not in the state the row starts from, which is a
// fault of this program.
func (l *legality) take(row *Row) error {
	// A cancelled context would wedge the library's machine for good, so it gets one that can't be cancelled.
	err := l.machine.Event(context.Background(), row.edge())
	// The library reports a move into the same state as an error; here it is a row like any other.
	if stayed := (fsm.NoTransitionError{}); errors.As(err, &stayed) && row.From == row.To {
		return nil
	}
	if err != nil {
		return fmt.Errorf("illegal transition from %s to %s: %w", l.machine.Current(), row.To, err)
	}
	return nil
}

// edge is the library's event name of a row. The guard belongs to it, because the library lets a second row for the
// same event and source silently replace the first.
func (row *Row) edge() string {
	if row.When == Always {
		return string(row.On)
	}
	return string(row.On) + " [" + string(row.When) + "]"
}
