package statemachine

import (
	"context"
	"errors"
	"fmt"

	"github.com/looplab/fsm"
)

// Checker verifies the decisions of Rules with a looplab/fsm machine built from the same table. Transitions that are
// not in the table are rejected. The library is not used anywhere else. A Checker is not safe for concurrent use.
type Checker struct {
	machine *fsm.FSM
}

// NewChecker returns a Checker for a table in the initial state.
func NewChecker(table []Row, initial State) *Checker {
	events := make(fsm.Events, 0, len(table))
	for i := range table {
		row := &table[i]
		events = append(events, fsm.EventDesc{Name: row.Edge(), Src: []string{string(row.From)}, Dst: string(row.To)})
	}
	return &Checker{machine: fsm.NewFSM(string(initial), events, nil)}
}

// Take makes the transition of a row. An error means that the machine is not in the row's From state, which is a bug.
func (l *Checker) Take(row *Row) error {
	// With a canceled context, the library's machine would block forever.
	err := l.machine.Event(context.Background(), row.Edge())
	// The library returns an error for a transition to the same state.
	if _, stayed := errors.AsType[fsm.NoTransitionError](err); stayed && !row.Moves() {
		return nil
	}
	if err == nil && l.machine.Current() != string(row.To) {
		err = errors.New("the table has two rows with the same name")
	}
	if err != nil {
		return fmt.Errorf("illegal transition from %s to %s: %w", l.machine.Current(), row.To, err)
	}
	return nil
}
