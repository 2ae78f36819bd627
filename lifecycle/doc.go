// Package lifecycle is the machine that takes an etcd pod from its first question to the sidecar to the exit record.
//
// Everything about the machine comes from one table (table.go), whose rows may name groups of states (groups.go): the
// looplab/fsm machine that decides whether a move is legal, the diagram, the README's picture and the transition tests.
// A pure core, which package machine has for every table, looks up what the table answers; a driver with one goroutine,
// one mailbox and one timer carries the answer out. Whatever can block runs in a goroutine that posts exactly one
// completion event.
//
// The command wires the package to the sidecar, the volume, the exit record and the embedded etcd through the small
// interfaces declared in world.go.
package lifecycle
