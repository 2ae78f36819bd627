package page_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

// The page in a real browser, which all of these share.
func TestInABrowserThePage(t *testing.T) {
	b := openBrowser(t)
	for _, story := range []struct {
		name string
		play func(*browser)
	}{
		{"turns grey without a connection, and live again by itself", greyAndLiveAgain},
		{"turns grey when the process is silent, though the connection stands", greyInSilence},
		{"says that a run has ended", sayTheEnd},
		{"lights the reasons that were taken and no others", lightWhatWasTaken},
		{"is used with the keyboard alone", useTheKeyboard},
		{"says aloud what changes, and not each poll", sayWhatChanges},
		{"is alarmed by a trouble as long as it lasts", alarmWhileItLasts},
		{"shows hidden characters and runs nothing that it shows", showHiddenCharacters},
		{"tells who this is, as far as that is known", tellWhoThisIs},
		{"tells times in the reader's zone, with their date", tellTimes},
		{"fits a desk and a phone", fitTheScreen},
		{"is legible, light and dark, live and grey", beLegible},
	} {
		t.Run(story.name, func(t *testing.T) {
			b.t = t
			defer func() { b.t = t }()
			story.play(b)
		})
	}
	b.t = t
}

// open lets the browser open the page of a process.
func (b *browser) open(first status.Document) *process {
	b.t.Helper()
	p := newProcess(b.t, first)
	b.run(chromedp.Navigate(p.url()))
	b.has("body:not(.lost)")
	return p
}

// later moves the browser's clock on, as if so much time had gone by.
func (b *browser) later(by time.Duration) {
	b.t.Helper()
	b.run(chromedp.Evaluate(fmt.Sprintf(`{ const real = Date.now; Date.now = () => real() + %d; tick() }`, by.Milliseconds()), nil))
}

func greyAndLiveAgain(b *browser) {
	p := b.open(serving())
	b.shows("#link", "live")
	b.holds(`document.title === "✓ etcd-wrapper · Serving, ready"`)
	b.later(time.Hour)
	b.shows("#facts", "for 1 h")

	p.kill()
	b.has("body.lost", "#link:not(.live)")
	b.shows("#link", "as of ")
	b.shows("#ready", "was ready")
	b.holds(`/^\? etcd-wrapper · as of (.* )?\d\d:\d\d:\d\d$/.test(document.title)`)
	b.shows("#news", "No connection.")
	require.True(b.t, b.is(`[...document.querySelectorAll("#ready, .verdict, #state, #facts dd, .node.current rect")].every((shown) => {
		const colours = getComputedStyle(shown)[shown.matches("rect") ? "fill" : "color"].match(/\d+/g).map(Number);
		return Math.max(...colours) - Math.min(...colours) < 40 })`),
		"everything is grey")
	stood := b.text("#facts")
	b.later(time.Hour)
	require.Equal(b.t, stood, b.text("#facts"), "no clock goes on")

	p.now = waiting()
	p.start()
	b.has("body:not(.lost)")
	b.shows("#state", "Wait")
	b.holds(`document.title === "✗ etcd-wrapper · Wait, not ready"`)
	b.has("#edge_Query_Trigger:not(.visited)", "#state_Serving:not(.visited)")
}

func greyInSilence(b *browser) {
	p := b.open(serving())
	p.mu.Lock() // nobody gets a document, and the connection stands
	b.later(13 * time.Second)
	b.has("body.lost")
	b.shows("#link", "as of ")
	p.mu.Unlock()
	b.has("body:not(.lost)")
}

func sayTheEnd(b *browser) {
	p := b.open(serving())
	p.tell(func(d *status.Document) { d.State, d.Ready = "Terminated", false })
	b.shows("#state", "Terminated")
	p.kill()
	b.shows("#link", "the process has ended")
	require.Equal(b.t, "not ready", b.text("#ready"))
}

func lightWhatWasTaken(b *browser) {
	b.open(waiting())
	b.has("#edge_Query_Wait.visited", "#edge_Wait_Query.visited", "#edge_Query_Trigger:not(.visited)", "#state_Wait.current[aria-current=step]")
	require.Equal(b.t, "×17", b.text("#edge_Query_Wait .badge"), "both reasons together")
	require.Contains(b.t, b.text("#details"), "wait before asking again", "the details follow the state")
	b.run(chromedp.Click("#edge_Query_Wait", chromedp.ByQuery))
	b.shows("#details-title", "Query → Wait")
	b.holds(`[...document.querySelectorAll("#details .rows li")].map((row) => row.className + row.querySelector("strong").textContent + (row.querySelector(".count")?.textContent ?? "")).join() ===
		"volume busy,takenreplied×1,replied,takenno answer×16"`)
	require.Contains(b.t, b.text("#details .taken"), "if says Failed")
	b.run(chromedp.Click("#close", chromedp.ByQuery))
	b.shows("#details-title", "Wait")
}

func useTheKeyboard(b *browser) {
	b.open(serving())
	b.reaches("state_Query", "edge_Query_Wait")
	require.True(b.t, b.is(`getComputedStyle(document.querySelector("#edge_Query_Wait .grip")).stroke !== getComputedStyle(document.querySelector("#edge_Query_Trigger .grip")).stroke`), "the focus is seen")
	require.True(b.t, b.is(`document.activeElement.getAttribute("role") === "button" && document.activeElement.getAttribute("aria-label") === "Query to Wait, gone 25 times"`))
	b.press("\r")
	b.holds(`document.activeElement.id === "details" && document.getElementById("details-title").textContent === "Query → Wait"`)
	b.has("#edge_Query_Wait[aria-expanded=true]")
	b.press("\x1b")
	b.holds(`document.activeElement.id === "edge_Query_Wait" && document.getElementById("details-title").textContent === "Serving"`)
	b.reaches("state_Serving")
	b.press(" ")
	b.holds(`document.activeElement.id === "details"`)
	b.press("\x1b")
	b.reaches("timeline")
}

// reaches presses the tabulator until each of the elements had the focus, in that order.
func (b *browser) reaches(ids ...string) {
	b.t.Helper()
	for presses := 0; len(ids) > 0; presses++ {
		require.Less(b.t, presses, 40, "%s is not reached", ids[0])
		b.press("\t")
		if b.is(`document.activeElement.id === %q`, ids[0]) {
			ids = ids[1:]
		}
	}
}

func sayWhatChanges(b *browser) {
	first := waiting()
	first.Attempt = 1
	p := b.open(first)
	require.Equal(b.t, 1, b.count(`document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log]").length`), "one voice")
	b.run(chromedp.Evaluate(`{ const news = document.getElementById("news"); window.said = [news.textContent]; new MutationObserver(() => said.push(news.textContent)).observe(news, { childList: true }) }`, nil))
	for poll := 2; poll < 6; poll++ {
		for _, state := range []string{"Query", "Wait"} {
			p.tell(func(d *status.Document) { d.State, d.Attempt, d.Reason = state, poll, fmt.Sprint("poll ", poll) })
			b.holds(`document.getElementById("state").textContent === %q && document.getElementById("reason").textContent === "poll %d"`, state, poll)
		}
	}
	p.tell(func(d *status.Document) { d.State, d.Attempt, d.Reason = "StartEtcd", 1, "etcd can run" })
	b.shows("#state", "StartEtcd")
	p.tell(func(d *status.Document) { d.State, d.Ready, d.Reason = "Serving", true, "joined" })
	b.shows("#state", "Serving")
	p.tell(func(d *status.Document) { d.Checks = verdicts("degraded", "alarm NOSPACE") })
	b.shows("#checks", "NOSPACE")
	p.tell(func(d *status.Document) { d.Ready = false })
	b.shows("#ready", "not ready")
	b.holds(`said.join("|") === "Now not ready, in Wait: %s|Entered StartEtcd, not ready: etcd can run|Now ready, in Serving: joined|Now not ready, in Serving: joined"`, waiting().Reason)
}

// count evaluates a number.
func (b *browser) count(expression string) (number int) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, &number))
	return number
}

func alarmWhileItLasts(b *browser) {
	p := b.open(waiting())
	b.shows("#facts dd.trouble", "sidecar")
	healthy := serving()
	healthy.Certificates = nil
	p.tell(func(d *status.Document) { *d = healthy })
	b.shows("#facts dd.quiet", "connection refused — over since ")
	require.False(b.t, b.is(`document.querySelector("#facts .trouble") !== null`))
	p.tell(func(d *status.Document) { d.Ready = false })
	b.has("#facts dd.trouble")
	b.show(`last_error: { ...latest.last_error, over: true }`)
	b.shows("#facts dd.quiet", "over")
	b.show(`last_error: { ...latest.last_error, ended: "2001-02-03T04:05:06Z" }`)
	b.shows("#facts dd.quiet", "over since 3 Feb 2001 09:35:06")
}

// show lets the page show its newest document with other fields.
func (b *browser) show(fields string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(`show({ ...latest, `+fields+` })`, nil))
}

func showHiddenCharacters(b *browser) {
	evil := serving()
	evil.Reason = "<img src=x onerror='window.ran = true'>\x1b[31m\r\n\u202edaer\u200b"
	evil.LastExit, evil.SidecarWord, evil.MemberID = evil.Reason, evil.Reason, evil.Reason
	evil.LastError.Message, evil.Validation.Reason, evil.Checks[0].Reason = evil.Reason, evil.Reason, evil.Reason
	evil.Certificates[0].Path, evil.Transitions[3].Reason, evil.Versions.Wrapper = evil.Reason, evil.Reason, evil.Reason
	b.open(evil)
	b.show(`pod: latest.reason, cluster_id: latest.reason, leader: latest.reason, peers: [{ name: latest.reason, id: latest.reason, urls: [latest.reason] }]`)
	want := "<img src=x onerror='window.ran = true'>␛[31m␍␊\\u202edaer\\u200b"
	for _, place := range []string{"#reason", "#facts", "#checks", "#steps", "#peers", "#name", "#versions", "title", "#news"} {
		b.shows(place, want)
	}
	require.Zero(b.t, b.count(`document.querySelectorAll("img").length`))
	require.True(b.t, b.is(`window.ran === undefined`))
	require.False(b.t, b.is(`/[\x00-\x09\x0b-\x1f\u202e\u200b]/.test(document.querySelector("main").textContent)`))
}

func tellWhoThisIs(b *browser) {
	b.open(serving())
	require.False(b.t, b.is(`[...document.querySelectorAll("dt")].some((name) => ["cluster", "leader", "database"].includes(name.textContent))`))
	require.NotRegexp(b.t, `undefined|null|NaN`, b.text("main"))
	require.True(b.t, b.is(`document.getElementById("members").hidden`))
	b.show(member)
	b.shows("#name", "etcd-main-0")
	b.holds(`document.title === "✓ etcd-main-0 · Serving, ready"`)
	for _, fact := range []string{
		"memberetcd-main-0, 8e9e05c52164694d", "clustercdf818194e3a8c32", "leaderetcd-main-1, term 7",
		"database2.25 GiB, 1.50 GiB of it in use; 28% of its quota of 8.00 GiB",
	} {
		b.shows("#facts", fact)
	}
	b.has("#peers li.ok:nth-child(2)", "#peers li.failed:nth-child(3)")
	b.shows("#peers", "missingetcd-main-2, learner")
}

const member = `pod: "etcd-main-0", member_name: "etcd-main-0", cluster_id: "cdf818194e3a8c32", leader: "91bc3c398fb3c146", term: 7,
	db_size: 2.25 * 2 ** 30, db_in_use: 1.5 * 2 ** 30, quota: 8 * 2 ** 30, certificates: [], peers: [
	{ name: "etcd-main-0", id: "8e9e05c52164694d", urls: ["https://etcd-main-0.etcd-main-peer:2380"], active: true },
	{ name: "etcd-main-1", id: "91bc3c398fb3c146", urls: ["https://etcd-main-1.etcd-main-peer:2380"], active: true, leader: true },
	{ name: "etcd-main-2", id: "fd422379fda50e48", urls: ["https://etcd-main-2.etcd-main-peer:2380"], active: false, learner: true }]`

func tellTimes(b *browser) {
	d := serving()
	d.Since, d.Started = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC), before(90*time.Second)
	b.open(d)
	b.shows("#zone", "times in UTC+05:30 (Asia/")
	b.shows("#facts", "3 Feb 2001 09:35:06, for ")
	b.has(`#facts time[datetime="2001-02-03T04:05:06.000Z"]`)
	b.shows("#facts", ", 1 min ago")
	b.later(time.Hour)
	b.shows("#facts", ", 1 h ago")
}

func fitTheScreen(b *browser) {
	b.open(serving())
	b.show(member)
	for _, size := range [][2]int64{{1280, 800}, {390, 844}} {
		b.run(chromedp.EmulateViewport(size[0], size[1]), chromedp.Evaluate(`scrollTo(0, 0)`, nil))
		b.holds(`innerWidth === %d`, size[0])
		require.True(b.t, b.is(`document.documentElement.scrollWidth <= innerWidth`), "nothing sticks out at %d", size[0])
		require.True(b.t, b.is(`document.querySelector("#diagram svg").getBoundingClientRect().bottom <= innerHeight`), "the first screen has all of it at %d", size[0])
		require.True(b.t, b.is(`document.querySelector(".node text").getBoundingClientRect().height >= 13`), "readable at %d", size[0])
		require.True(b.t, b.is(`[...document.querySelectorAll(".visited .badge rect")].every((badge) => {
			const a = badge.getBoundingClientRect();
			return [...document.querySelectorAll(".node text")].every((text) => {
				const b = text.getBoundingClientRect();
				return a.right < b.left || b.right < a.left || a.bottom < b.top || b.bottom < a.top })})`), "counts cover no text at %d", size[0])
	}
	b.run(chromedp.Click("#edge_Terminating_Terminated", chromedp.ByQuery))
	b.holds(`document.querySelector("#edge_Terminating_Terminated").getBoundingClientRect().bottom <= document.querySelector("#details").getBoundingClientRect().top`)
	b.run(chromedp.EmulateViewport(1280, 800))
}

func beLegible(b *browser) {
	p := b.open(waiting())
	b.picture("wait")
	b.contrast("with trouble")
	b.run(chromedp.Click("#edge_Query_Wait", chromedp.ByQuery))
	b.has("body.chosen")
	b.picture("chosen")
	b.press("\x1b")
	p.tell(func(d *status.Document) { *d = serving() })
	b.shows("#state", "Serving")
	b.show(member)
	b.run(chromedp.Evaluate(`document.activeElement.blur()`, nil))
	b.picture("serving")
	b.contrast("serving")
	p.kill()
	b.has("body.lost")
	b.picture("lost")
	b.contrast("grey")
}

// contrast finds texts that have less than WCAG's 4.5 to 1 with what is behind them.
func (b *browser) contrast(when string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		var faint []string
		b.run(chromedp.Evaluate(faintTexts, &faint))
		require.Empty(b.t, faint, "%s, %s", when, scheme)
	}
	b.scheme("light")
}

const faintTexts = `(() => {
	const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
	const light = (colour) => numbers(colour).slice(0, 3).map((n) => n / 255)
		.map((n) => n <= .04045 ? n / 12.92 : ((n + .055) / 1.055) ** 2.4).reduce((sum, n, i) => sum + n * [.2126, .7152, .0722][i], 0);
	const ground = (at) => {
		for (; at; at = at.parentElement) {
			const rect = at.matches("g") && at.querySelector(":scope > rect");
			if (rect) return getComputedStyle(rect).fill;
			const colour = getComputedStyle(at).backgroundColor;
			if ((numbers(colour)[3] ?? 1) === 1) return colour;
		}
		return "rgb(255, 255, 255)";
	};
	const texts = [...document.querySelectorAll("body *")].filter((at) => at.checkVisibility() && !at.matches("script, style") &&
		[...at.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()));
	return texts.flatMap((at) => {
		const [a, b] = [light(getComputedStyle(at)[at.matches("text") ? "fill" : "color"]), light(ground(at))].sort((a, b) => b - a);
		const ratio = (a + .05) / (b + .05);
		return ratio < 4.5 ? [ratio.toFixed(2) + " " + at.textContent.trim().slice(0, 40)] : [];
	});
})()`
