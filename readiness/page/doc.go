// Package page serves the wrapper's web page: the member's health at a glance, the state machine, the last hours, the timeline, restore
// points and the readiness checks, live.
//
// The page needs only the wrapper's own server, so it works through kubectl port-forward and without a network. It reads the event
// stream of GET /lifecycle and shows nothing that is not in that document. Without a connection it turns grey: outdated values have
// no colour, and clocks stop. The script is one part a file; the content security policy allows exactly this script and this style.
// Text from the document is never read as HTML.
package page
