//go:build !race

package main_test

// underRace says that these tests look for data races, and so does the program that they run.
const underRace = false
