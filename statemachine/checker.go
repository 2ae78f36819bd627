package statemachine

import (
	"context"
	"errors"
	"fmt"

	"github.com/looplab/fsm"
)

// Checker verifies the decisions of Rules with a looplab/fsm machine that is made from the same table. It refuses any
// move that is not an edge of the table. No other file uses the library. A Checker is not safe for concurrent use.
type Checker struct {
	machine *fsm.FSM
}

// NewChecker returns a Checker for a table, in the initial state.
func NewChecker(table []Row, initial State) *Checker {
	events := make(fsm.Events, 0, len(table))
	for i := range table {
		row := &table[i]
		events = append(events, fsm.EventDesc{Name: row.Edge(), Src: []string{string(row.From)}, Dst: string(row.To)})
	}
	return &Checker{machine: fsm.NewFSM(string(initial), events, nil)}
}

// Take moves the machine along the edge of a row. It fails if the machine is not in the state that the row starts
// from, which is a bug.
func (l *Checker) Take(row *Row) error {
	// A cancelled context would block the library's machine forever.
	err := l.machine.Event(context.Background(), row.Edge())
	// The library reports a move into the same state as an error.
	if _, stayed := errors.AsType[fsm.NoTransitionError](err); stayed && !row.Moves() {
		return nil
	}
	if err == nil && l.machine.Current() != string(row.To) {
		err = errors.New("the table has two rows under one name")
	}
	if err != nil {
		return fmt.Errorf("illegal transition from %s to %s: %w", l.machine.Current(), row.To, err)
	}
	return nil
}
