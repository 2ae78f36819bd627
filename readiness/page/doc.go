// Package page serves the wrapper's web page. It shows, live, the member's health at a glance, the state machine, the
// last hours, the timeline, restore points and the readiness checks.
//
// The page needs only the wrapper's own server, so it works through kubectl port-forward and without a network. It
// reads the event stream of GET /lifecycle and shows only the content of that document. Without a connection it turns
// grey: outdated values have no colour, and clocks stop. Each file has one part of the script. The content security
// policy allows exactly this script and this style. The page never interprets text from the document as HTML.
package page
