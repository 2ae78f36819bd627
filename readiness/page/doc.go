// Package page serves the wrapper's web page. The page shows the member's health, the state machine, trends, the
// timeline, restore points and the readiness checks, all updated live.
//
// It loads everything from the wrapper's own server, so it works through kubectl port-forward and without Internet
// access. The page reads the event stream of GET /lifecycle, and shows nothing that is not in the status document. If
// the connection is lost, the page turns grey and its clocks stop. The content security policy allows only the page's
// own script and style. Text from the document is never interpreted as HTML.
package page
