// Package statemachine implements the state machines of this program: the lifecycle, recovery and the backup writer.
//
// A machine is defined by a table. A row means: in state From, if event On occurs and guard When holds, go to state
// To and perform the actions Do. Why is the reason. Rows with the same From and On are adjacent, and the first one
// whose guard holds applies. Defaults answer events that have no row in the current state. States, events, guards
// and actions are only names. The package that defines a machine gives these names a meaning: its Facts evaluate
// the guards, and its driver performs the actions.
//
// [Rules.Step] is a pure function without I/O, clocks or goroutines, so tests can drive a machine through every
// reachable state ([statemachinetest]). [Checker] verifies the transitions independently, with a looplab/fsm machine
// built from the same table.
//
// [Diagram] renders a table as a Graphviz graph, a Mermaid diagram and JSON. [Rules.Matrix] lists all answers of a
// machine. The matrix is committed as a golden file so that reviewers see every change of behavior.
//
// [statemachinetest]: etcd-wrapper/statemachine/statemachinetest
package statemachine
