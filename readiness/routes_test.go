package readiness

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

func passed(check int) Check { return Check{Name: names[check], Status: OK} }

// monitorWith returns a Monitor with a report in which all checks pass, except as modified by spoil, which may be nil.
func monitorWith(spoil func(*Report)) *Monitor {
	r := &Report{LastRead: time.Now()}
	for i := range r.checks {
		r.checks[i] = passed(i)
	}
	if spoil != nil {
		spoil(r)
	}
	m := NewMonitor(zerolog.Nop())
	m.report.Store(r)
	return m
}

func serving() Phase { return Phase{State: "Serving", Since: time.Now(), Serving: true} }

func starting() Phase {
	return Phase{State: "StartEtcd", Since: time.Now().Add(-12 * time.Second), Reason: "etcd is waiting\n[+]for quorum"}
}

// ask sends a request from a local client, after applying change to it.
func ask(h http.Handler, method, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = "127.0.0.1:4711"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const allPassed = "[+]quorum ok\n[+]not_learner ok\n[+]no_corrupt_alarm ok\n[+]client_listener ok\n[+]space ok\n[+]volume ok\n[+]data_version ok\n[+]defragmentation ok\n[+]certificates ok\n"

func TestReadyz(t *testing.T) {
	passing := "[+]lifecycle ok\n" + allPassed
	for name, c := range map[string]struct {
		phase  func() Phase
		spoil  func(*Report)
		target string
		code   int
		body   string // expected text in the body
	}{
		"ready":       {serving, nil, "/readyz", 200, "ok\n"},
		"verbose":     {serving, nil, "/readyz?verbose", 200, passing + "ok\n"},
		"other query": {serving, nil, "/readyz?x=verbose", 200, "ok\n"},
		"not serving": {
			starting, nil, "/readyz", 503,
			"[-]lifecycle failed: StartEtcd for 12s: etcd is waiting [+]for quorum\n" + allPassed + "not ready\n",
		},
		"no quorum": {
			serving, func(r *Report) { r.checks[quorum] = failed(quorum, "timeout") }, "/readyz", 503,
			strings.Replace(passing, "[+]quorum ok", "[-]quorum failed: timeout", 1) + "not ready\n",
		},
		"outdated report": {
			serving, func(r *Report) { r.LastRead = r.LastRead.Add(-time.Hour) }, "/readyz", 503,
			"[-]quorum failed: the last successful linearizable read started 1h0m0",
		},
		"never read": {serving, func(r *Report) { r.LastRead = time.Time{} }, "/readyz?verbose", 503, "[-]quorum failed: "},
		"is a learner": {
			serving, func(r *Report) { r.checks[learner] = failed(learner, "a") }, "/readyz", 503,
			"\n[-]not_learner failed: a\n",
		},
		"corrupt alarm": {
			serving, func(r *Report) { r.checks[corrupt] = failed(corrupt, "b") }, "/readyz", 503,
			"\n[-]no_corrupt_alarm failed: b\n",
		},
		"listener failed": {
			serving, func(r *Report) { r.checks[listener] = failed(listener, "c") }, "/readyz", 503,
			"\n[-]client_listener failed: c\n",
		},
		"unknown status": {
			serving, func(r *Report) { r.checks[learner] = Check{Name: "not_learner", Status: "odd", Reason: "d"} }, "/readyz", 503,
			"\n[-]not_learner failed: d\n",
		},
		"no space": {serving, func(r *Report) { r.checks[space] = Check{Name: "space", Status: Degraded, Reason: "full"} }, "/readyz", 200, "ok\n"},
		"no space, verbose": {
			serving, func(r *Report) { r.checks[space] = Check{Name: "space", Status: Degraded, Reason: "full"} },
			"/readyz?verbose", 200, "\n[!]space degraded: full\n[+]volume ok\n[+]data_version ok\n[+]defragmentation ok\n[+]certificates ok\nok\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(routes(Options{Phase: c.phase}, monitorWith(c.spoil)), http.MethodGet, c.target, nil)
			require.Equal(t, c.code, w.Code)
			require.Contains(t, w.Body.String(), c.body)
			if c.code == 200 && !strings.Contains(c.target, "?verbose") {
				require.Equal(t, c.body, w.Body.String())
			}
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"))
		})
	}
}

func TestLivezInAnyState(t *testing.T) {
	w := ask(routes(Options{Phase: starting}, NewMonitor(zerolog.Nop())), http.MethodGet, "/livez", nil)
	require.Equal(t, 200, w.Code)
	require.Equal(t, "ok\n", w.Body.String())
}

func TestWrongMethodsAndPaths(t *testing.T) {
	stop := func() { t.Error("unexpected stop") }
	h := routes(Options{Phase: serving, Stop: stop}, monitorWith(nil))
	for _, c := range []struct {
		method, path string
		code         int
		allow        string
	}{
		{"HEAD", "/readyz", 200, ""},
		{"HEAD", "/livez", 200, ""},
		{"POST", "/readyz", 405, "GET, HEAD"},
		{"DELETE", "/livez", 405, "GET, HEAD"},
		{"GET", "/stop", 405, "POST"},
		{"HEAD", "/stop", 405, "POST"},
		{"OPTIONS", "/stop", 405, "POST"},
		{"GET", "/", 404, ""},
		{"POST", "/stop/now", 404, ""},
		{"GET", "/metrics", 404, ""},
	} {
		w := ask(h, c.method, c.path, nil)
		require.Equal(t, c.code, w.Code, c)
		require.Equal(t, c.allow, w.Header().Get("Allow"), c)
	}
}

func TestOnlyLocalClientsMayStop(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	from := func(addr string) func(*http.Request) { return func(r *http.Request) { r.RemoteAddr = addr } }
	for name, c := range map[string]struct {
		change func(*http.Request)
		code   int
	}{
		"loopback":                 {nil, 200},
		"loopback, IPv6":           {from("[::1]:80"), 200},
		"loopback, IPv4-mapped":    {from("[::ffff:127.0.0.2]:80"), 200},
		"remote":                   {from("10.1.2.3:80"), 403},
		"remote, IPv6":             {from("[fe80::1%eth0]:80"), 403},
		"no address":               {from(""), 403},
		"remote, forwarded header": {func(r *http.Request) { from("10.1.2.3:80")(r); header("X-Forwarded-For", "127.0.0.1")(r) }, 403},
		"browser":                  {header("Origin", "https://evil.example"), 403},
		"browser, DNS rebinding":   {func(r *http.Request) { header("Origin", "http://"+r.Host)(r) }, 403},
		"browser, opaque origin":   {header("Origin", "null"), 403},
		"browser, fetch":           {header("Sec-Fetch-Site", "same-origin"), 403},
	} {
		t.Run(name, func(t *testing.T) {
			stops := 0
			h := routes(Options{Stop: func() { stops++ }}, monitorWith(nil))
			w := ask(h, http.MethodPost, "/stop", c.change)
			require.Equal(t, c.code, w.Code)
			if c.code == 200 {
				require.Equal(t, "stopping\n", w.Body.String())
				require.Equal(t, "9", w.Header().Get("Content-Length"))
			}
			require.Equal(t, c.code == 200, stops == 1, "stopped %d times", stops)
		})
	}
}

// disconnected is a response writer whose client has disconnected.
type disconnected struct{ *httptest.ResponseRecorder }

func (disconnected) FlushError() error { return errors.New("broken pipe") }

func TestOnlyLocalClientsMayDefragment(t *testing.T) {
	for name, c := range map[string]struct {
		refusal error // returned by Options.Defragment
		change  func(*http.Request)
		code    int
		body    string
		asked   int // expected calls of Options.Defragment
	}{
		"loopback": {nil, nil, 202, "defragmenting\n", 1},
		"remote":   {nil, func(r *http.Request) { r.RemoteAddr = "10.1.2.3:80" }, 403, "only clients on loopback may request a defragmentation\n", 0},
		"browser":  {nil, func(r *http.Request) { r.Header.Set("Origin", "null") }, 403, "browsers may not request a defragmentation\n", 0},
		"rejected": {errors.New("the database is being read"), nil, 409, "the database is being read\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			var log strings.Builder
			defragment := func() error { asked++; return c.refusal }
			w := ask(routes(Options{Defragment: defragment, Log: zerolog.New(&log)}, monitorWith(nil)), http.MethodPost, "/defrag", c.change)
			require.Equal(t, c.code == 403, strings.Contains(log.String(), "rejected a client's attempt to request a defragmentation"))
			require.Equal(t, c.code, w.Code)
			require.Equal(t, c.body, w.Body.String())
			require.Equal(t, c.asked, asked)
		})
	}
}

func TestStopIfTheClientHasDisconnected(t *testing.T) {
	stops := 0
	h := routes(Options{Stop: func() { stops++ }, Log: zerolog.Nop()}, monitorWith(nil))
	r := httptest.NewRequest(http.MethodPost, "/stop", nil)
	r.RemoteAddr = "127.0.0.1:80"
	h.ServeHTTP(disconnected{httptest.NewRecorder()}, r)
	require.Equal(t, 1, stops)
}

func TestEveryCheckIsDocumented(t *testing.T) {
	have := []string{lifecycleCheck(time.Now(), serving()).Name}
	have = append(have, names[:]...)
	var explained []string
	for _, row := range docs.Table(t, "check", "is failed or degraded when") {
		explained = append(explained, docs.Quoted(row[0])...)
	}
	require.ElementsMatch(t, have, explained, "the table of checks in docs/api.md has one row per check")
}
