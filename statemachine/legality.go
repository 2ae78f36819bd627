package statemachine

import (
	"context"
	"errors"
	"fmt"

	"github.com/looplab/fsm"
)

// Legality is the looplab/fsm machine made from a table. The rules decide, this machine must agree: it refuses every
// move that is not an edge of the table. It is the only place that knows the library. One goroutine may use it.
type Legality struct {
	machine *fsm.FSM
}

// NewLegality returns the library's machine for a table, in its initial state.
func NewLegality(table []Row, initial State) *Legality {
	events := make(fsm.Events, 0, len(table))
	for i := range table {
		row := &table[i]
		events = append(events, fsm.EventDesc{Name: row.Edge(), Src: []string{string(row.From)}, Dst: string(row.To)})
	}
	return &Legality{machine: fsm.NewFSM(string(initial), events, nil)}
}

// Take walks the edge of a row. The error means that the machine is not in the state the row starts from, which is a
// fault of this program.
func (l *Legality) Take(row *Row) error {
	// A cancelled context would wedge the library's machine for good, so it gets one that can't be cancelled.
	err := l.machine.Event(context.Background(), row.Edge())
	// The library reports a move into the same state as an error; here it is a row like any other.
	if stayed := (fsm.NoTransitionError{}); errors.As(err, &stayed) && row.From == row.To {
		return nil
	}
	if err != nil {
		return fmt.Errorf("illegal transition from %s to %s: %w", l.machine.Current(), row.To, err)
	}
	return nil
}

// Edges are the ways out of a state that the library knows, each with where it leads; tests hold them against the table.
func Edges(table []Row, state State) (edges []string) {
	legal := NewLegality(table, state)
	for _, edge := range legal.machine.AvailableTransitions() {
		legal.machine.SetState(string(state))
		_ = legal.machine.Event(context.Background(), edge) // a move into the same state is an error there
		edges = append(edges, edge+" to "+legal.machine.Current())
		legal.machine.SetState(string(state))
	}
	return edges
}
