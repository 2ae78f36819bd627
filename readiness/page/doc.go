// Package page serves the wrapper's web page. The page shows the health of the member, the state machine, trends, the
// timeline, restore points and the readiness checks, and updates them live.
//
// The page needs only the wrapper's own server, so it works with kubectl port-forward and without Internet access.
// The page reads the event stream of GET /lifecycle and shows only the content of the status document. If the
// connection is lost, the page turns grey and its clocks stop. The content security policy allows only the page's own
// script and style. Text from the document is never interpreted as HTML.
package page
