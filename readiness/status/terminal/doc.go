// Package terminal formats status documents for a terminal. The package is used by the status command, and by the
// console log to format transitions and durations.
//
// A Printer prints the most important parts of a document on one screen, or the whole document if it is Verbose. With
// --watch, a Printer prints each change once, and keeps the headline and the progress bars below the changes.
package terminal
