// Package terminal formats status documents for a terminal. The status command uses the package, and so does the
// console log for transitions and durations.
//
// A Printer prints the most important parts of a document on one screen, or everything if it is Verbose. With
// --watch, a Printer prints each change once and keeps the headline and progress bars below the changes.
package terminal
