package lifecycle

import "context"

// PictureOf is for the test that the embedded picture is the current one.
var PictureOf = pictureOf

// EdgesOfTheLibrary walks every edge of the looplab/fsm machine and returns them by source.
func EdgesOfTheLibrary(table []Row) map[string][]string {
	edges := map[string][]string{}
	for _, state := range States {
		legal := newLegality(table)
		legal.machine.SetState(string(state.Name))
		for _, edge := range legal.machine.AvailableTransitions() {
			legal.machine.SetState(string(state.Name))
			_ = legal.machine.Event(context.Background(), edge) // a move into the same state is an error there
			edges[string(state.Name)] = append(edges[string(state.Name)], edge+" to "+legal.machine.Current())
		}
	}
	return edges
}

// TakeInOrder has the library's machine walk rows of the table, as the driver does.
func TakeInOrder(table []Row, rows ...int) error {
	legal := newLegality(table)
	for _, row := range rows {
		if err := legal.take(&table[row]); err != nil {
			return err
		}
	}
	return nil
}

// UrgentFirst puts a completion and then a stop into the mailboxes and reports whether the stop is looked at first.
func UrgentFirst(d *Driver) bool {
	d.mailbox <- message{event: Replied}
	d.urgent <- message{event: Signal}
	first, second := d.next(), d.next()
	return first.event == Signal && second.event == Replied
}

// IsBound reports whether the driver does anything for an action.
func IsBound(action Action) bool {
	driver := NewDriver(Options{})
	_, quick := driver.limit(action)
	_, slow := blocking[action]
	return quick || slow
}
