package readiness

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/internal/printable"
)

// endpoints handles requests for the server's own routes.
type endpoints struct {
	Options
	monitor *Monitor
}

// own returns the handlers for the server's own routes by pattern.
func (e *endpoints) own() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /readyz":  http.HandlerFunc(e.readyz),
		"GET /livez":   http.HandlerFunc(e.livez),
		"POST /stop":   LocalOnly("request a stop", e.Log, http.HandlerFunc(e.stop)),
		"POST /defrag": LocalOnly("request a defragmentation", e.Log, http.HandlerFunc(e.defrag)),
	}
}

// Patterns returns the sorted patterns of the server's own routes, without those in Options.Routes.
func Patterns() []string { return slices.Sorted(maps.Keys(new(endpoints).own())) }

// routes returns the handler for all requests. The mux rejects wrong methods (405 with Allow) and unknown paths
// (404). Handlers do not read request bodies. Instead, net/http discards a body of up to 256 KiB within
// requestTimeout before it replies, and closes the connection if the body is larger.
func routes(o Options, m *Monitor) http.Handler {
	e := &endpoints{Options: o, monitor: m}
	mux := http.NewServeMux()
	for _, routes := range []map[string]http.Handler{e.own(), o.Routes} {
		for pattern, handler := range routes {
			mux.Handle(pattern, handler)
		}
	}
	return mux
}

// readyz replies with status 200 if the member is ready, and otherwise with status 503 and the results of all checks.
// readyz never blocks.
func (e *endpoints) readyz(w http.ResponseWriter, r *http.Request) {
	phase, report, now := e.Phase(), e.monitor.Report(), time.Now() // time.Now must be evaluated last, because ages must not be negative
	ready := phase.Serving && report.Ready(now)
	verbose := r.URL.RawQuery != "" && r.URL.Query().Has("verbose")
	switch {
	case !ready:
		reply(w, http.StatusServiceUnavailable, formatChecks(now, phase, report)+"not ready\n")
	case verbose:
		reply(w, http.StatusOK, formatChecks(now, phase, report)+"ok\n")
	default:
		reply(w, http.StatusOK, "ok\n")
	}
}

// livez always replies with status 200.
func (e *endpoints) livez(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "ok\n") }

// stop sends the entire reply before it requests the stop, because the sidecar exits if the connection is closed
// before the reply arrives. If the reply cannot be sent, the stop is requested anyway.
func (e *endpoints) stop(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, "stopping\n")
	if err := http.NewResponseController(w).Flush(); err != nil {
		e.Log.Warn().Err(err).Str("client", r.RemoteAddr).Msg("cannot send the reply to POST /stop")
	}
	e.Log.Info().Str("client", r.RemoteAddr).Msg("stop requested by POST /stop")
	e.Stop()
}

// LocalOnly replies with status 403 to browsers and to clients that are not on loopback. what describes the request
// in the reply and in the log, for example "request a stop".
func LocalOnly(what string, log zerolog.Logger, next http.Handler) http.Handler {
	log = rateLimit(log)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reason := rejectReason(r, what)
		if reason == "" {
			next.ServeHTTP(w, r)
			return
		}
		log.Warn().Str("client", r.RemoteAddr).Str("reason", reason).Msg("rejected a client's attempt to " + what)
		reply(w, http.StatusForbidden, reason+"\n")
	})
}

// defrag requests a defragmentation, and replies without waiting for it. GET /lifecycle shows the progress.
func (e *endpoints) defrag(w http.ResponseWriter, r *http.Request) {
	if err := e.Defragment(); err != nil {
		reply(w, http.StatusConflict, err.Error()+"\n")
		return
	}
	e.Log.Info().Str("client", r.RemoteAddr).Msg("defragmentation requested by POST /defrag")
	reply(w, http.StatusAccepted, "defragmenting\n")
}

// rejectReason returns why the client may not make this request, or "" if it may. Forwarded headers are ignored,
// because any client can set them. All browsers are rejected. They can be recognized because they send one of two
// headers with every POST request, even if DNS rebinding makes the request look same-origin.
func rejectReason(r *http.Request, what string) string {
	if !onLoopback(r.RemoteAddr) {
		return "only clients on loopback may " + what
	}
	for _, name := range []string{"Origin", "Sec-Fetch-Site"} {
		if _, sent := r.Header[name]; sent {
			return "browsers may not " + what
		}
	}
	return ""
}

func onLoopback(hostPort string) bool {
	client, err := netip.ParseAddrPort(hostPort)
	return err == nil && client.Addr().Unmap().IsLoopback()
}

func reply(w http.ResponseWriter, code int, body string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // an error means that the client has disconnected
}

// formatChecks returns a line for each check, starting with the lifecycle. Adjacent checks that fail for the same
// reason share a line. Reasons are escaped, because they may contain newlines or control characters from untrusted
// sources.
func formatChecks(now time.Time, phase Phase, report *Report) string {
	var lines []Check
	for _, c := range append([]Check{lifecycleCheck(now, phase)}, report.Checks(now)...) {
		if last := len(lines) - 1; last >= 0 && c.Status == Failed && c.Status == lines[last].Status && c.Reason == lines[last].Reason {
			lines[last].Name += ", " + c.Name
			continue
		}
		lines = append(lines, c)
	}
	var b strings.Builder
	for _, c := range lines {
		b.WriteString(formatCheck(c))
	}
	return b.String()
}

func formatCheck(c Check) string {
	switch c.Status {
	case OK:
		return fmt.Sprintf("[+]%s ok\n", c.Name)
	case Degraded:
		return fmt.Sprintf("[!]%s degraded: %s\n", c.Name, printable.Line(c.Reason))
	case Failed:
	}
	return fmt.Sprintf("[-]%s failed: %s\n", c.Name, printable.Line(c.Reason)) // an unrecognized status counts as failed
}

func lifecycleCheck(now time.Time, p Phase) Check {
	if p.Serving {
		return Check{Name: "lifecycle", Status: OK}
	}
	reason := fmt.Sprintf("%s for %v: %s", p.State, now.Sub(p.Since).Round(time.Second), p.Reason)
	return Check{Name: "lifecycle", Status: Failed, Reason: reason}
}
