// Package recovery decides what becomes of etcd's data directory before etcd may open it, and does it: data that are broken,
// lost or were put back to an older state come back from the backups where that is safe, and where it is not one sentence
// says why. A run of it is a table of states on the lifecycle's core (table.go); nothing is deleted, what is replaced is set
// aside by a rename, and after a crash at any instant the next run comes to the same end.
//
// It stands behind what answers for the sidecar (standalone), which runs it in the place of a mere validation. What it needs of
// the command is in Options.
package recovery
