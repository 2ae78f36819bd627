// Package terminal formats status documents for a terminal. It is used by the status command, and by the console log
// for transitions and durations.
//
// A Printer prints the most important parts of a document on one screen, or the whole document if it is Verbose. With
// --watch, a Printer prints each change once, and keeps the headline and any progress bars below the changes.
package terminal
