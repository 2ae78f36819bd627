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

// endpoints answers the server's requests.
type endpoints struct {
	Options
	monitor *Monitor
	refusal zerolog.Logger
}

// own are the endpoints that the server always has.
var own = map[string]func(*endpoints, http.ResponseWriter, *http.Request){
	"GET /readyz": (*endpoints).readyz,
	"GET /livez":  (*endpoints).livez,
	"POST /stop":  (*endpoints).stop,

	"POST /defrag": (*endpoints).defrag,
}

// Patterns are the endpoints that the server has beside Options.Routes, by net/http's patterns.
func Patterns() []string { return slices.Sorted(maps.Keys(own)) }

// routes leaves wrong methods (405 with Allow) and unknown paths (404) to the mux. Bodies are not read here: net/http
// drops up to 256 KiB within requestTimeout before it replies, and closes the connection on more.
func routes(o Options, m *Monitor) http.Handler {
	e := &endpoints{Options: o, monitor: m, refusal: sparingly(o.Log)}
	mux := http.NewServeMux()
	for pattern, answer := range own {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { answer(e, w, r) })
	}
	for pattern, handler := range o.Routes {
		mux.Handle(pattern, handler)
	}
	return mux
}

// readyz answers from memory.
func (e *endpoints) readyz(w http.ResponseWriter, r *http.Request) {
	phase, report, now := e.Phase(), e.monitor.Report(), time.Now() // the time last: ages count to the answer
	ready := phase.Serving && report.Ready(now)
	verbose := r.URL.RawQuery != "" && r.URL.Query().Has("verbose")
	switch {
	case !ready:
		reply(w, http.StatusServiceUnavailable, listing(now, phase, report)+"not ready\n")
	case verbose:
		reply(w, http.StatusOK, listing(now, phase, report)+"ok\n")
	default:
		reply(w, http.StatusOK, "ok\n")
	}
}

// livez says no more than that the process answers.
func (e *endpoints) livez(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "ok\n") }

// stop replies in full before it asks for the stop: the sidecar ends fatally if its connection breaks before the reply.
// A client that left without waiting is no reason not to stop.
func (e *endpoints) stop(w http.ResponseWriter, r *http.Request) {
	if e.refuses(w, r, "a stop") {
		return
	}
	reply(w, http.StatusOK, "stopping\n")
	if err := http.NewResponseController(w).Flush(); err != nil {
		e.Log.Warn().Err(err).Str("client", r.RemoteAddr).Msg("cannot send the reply to POST /stop")
	}
	e.Log.Info().Str("client", r.RemoteAddr).Msg("stop asked for by POST /stop")
	e.Stop()
}

// ForThisHost answers 403 to clients that are not on loopback, and to browsers always. what says what they may not do.
func ForThisHost(what string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reason := whyRefuse(r, what); reason != "" {
			reply(w, http.StatusForbidden, reason+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// defrag replies before the defragmentation begins; GET /lifecycle shows its progress.
func (e *endpoints) defrag(w http.ResponseWriter, r *http.Request) {
	if e.refuses(w, r, "a defragmentation") {
		return
	}
	if err := e.Defragment(); err != nil {
		reply(w, http.StatusConflict, err.Error()+"\n")
		return
	}
	e.Log.Info().Str("client", r.RemoteAddr).Msg("defragmentation asked for by POST /defrag")
	reply(w, http.StatusAccepted, "defragmenting\n")
}

// refuses replies to a client that may not ask for what it asks for, and reports whether it did.
func (e *endpoints) refuses(w http.ResponseWriter, r *http.Request, what string) bool {
	reason := whyRefuse(r, "ask for "+what)
	if reason == "" {
		return false
	}
	e.refusal.Warn().Str("client", r.RemoteAddr).Str("reason", reason).Msg("refused " + what)
	reply(w, http.StatusForbidden, reason+"\n")
	return true
}

// whyRefuse returns an empty string if the client may ask for it. Forwarded headers are not looked at: anyone can write
// them. A browser is never a client of ours, not even one that was led to think it is on the same origin (DNS
// rebinding), and every browser's POST carries one of these two headers.
func whyRefuse(r *http.Request, what string) string {
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
	_, _ = io.WriteString(w, body) // a client that is gone misses nothing
}

// listing has one line per check, the lifecycle's first; neighbours that fail for one reason share a line. Reasons quote
// unknown sources: they must neither fake lines nor reach a terminal as they are.
func listing(now time.Time, phase Phase, report *Report) string {
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
		b.WriteString(c.line())
	}
	return b.String()
}

func (c Check) line() string {
	switch c.Status {
	case OK:
		return fmt.Sprintf("[+]%s ok\n", c.Name)
	case Degraded:
		return fmt.Sprintf("[!]%s degraded: %s\n", c.Name, printable.Line(c.Reason))
	case Failed:
	}
	return fmt.Sprintf("[-]%s failed: %s\n", c.Name, printable.Line(c.Reason)) // and so is what nobody judged
}

func lifecycleCheck(now time.Time, p Phase) Check {
	if p.Serving {
		return Check{Name: "lifecycle", Status: OK}
	}
	reason := fmt.Sprintf("%s for %v: %s", p.State, now.Sub(p.Since).Round(time.Second), p.Reason)
	return Check{Name: "lifecycle", Status: Failed, Reason: reason}
}
