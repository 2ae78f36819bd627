// Package statemachine implements the state machines of this program: the lifecycle, recovery and the backup writer.
//
// A machine is a table. Each row reads: in state From, if event On happens and guard When holds, go to state To, do
// the actions Do, because of Why. Rows with the same From and On are adjacent; the first whose guard holds is taken.
// Defaults answer the events that have no row in a state. States, events, guards and actions are names; the package of
// a machine gives them a meaning: its Facts evaluate guards, its driver carries out actions.
//
// [Rules.Step] is pure. It does no I/O, reads no clock and starts no goroutine, so tests can drive a machine through
// every reachable state ([statemachinetest]). [Checker] is an independent check: a looplab/fsm machine made from the
// same table refuses any move that is not an edge of the table.
//
// [Diagram] renders a table for its readers: as a Graphviz or Mermaid diagram, as JSON, and as a matrix of all answers
// that is committed as a golden file, so that a change of behaviour shows in a review as a change of its lines.
//
// [statemachinetest]: etcd-wrapper/statemachine/statemachinetest
package statemachine
