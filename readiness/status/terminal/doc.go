// Package terminal formats status documents for a terminal. The status command prints with it, and the console form
// of the log formats steps and durations the same way.
//
// A Printer fits a document on one screen, or shows all of it if it is Verbose, in the width of the terminal. With
// --watch it prints each change once and keeps the headline and progress bars below the changes.
package terminal
