package page_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

func TestInABrowserThePage(t *testing.T) {
	shared := newBrowser(t)
	for _, test := range []struct {
		name string
		run  func(browser)
	}{
		{"turns grey without a connection and reconnects automatically", testReconnect},
		{"turns grey if an open connection is silent", testSilentConnection},
		{"shows that the process has ended", testEndOfRun},
		{"highlights only the transitions that were taken", testVisitedTransitions},
		{"links to the full diagram", testDiagramLink},
		{"can be used with the keyboard alone", testKeyboard},
		{"announces changes, but not every poll", testAnnouncements},
		{"highlights an error until it is resolved", testLastError},
		{"shows control characters and never interprets text as HTML", testEscaping},
		{"shows the known facts about the member", testIdentity},
		{"shows a defragmentation and the readers of the database", testMaintenance},
		{"shows the backups and highlights their problems", testBackups},
		{"shows a degraded member in amber", testDegraded},
		{"shows the tiles", testTiles},
		{"draws the trends", testTrends},
		{"shows the timeline with a mark for each event", testTimeline},
		{"copies commands and flags", testCopyCommands},
		{"shows why the process has ended", testExitReason},
		{"shows the recovery instead of the diagram", testRecovery},
		{"enlarges the diagram while the state is changing", testDiagramSize},
		{"shows the restore points and how to restore them", testRestorePoints},
		{"shows times in the time zone of the browser", testTimeZone},
		{"calculates ages with the clock of the process", testClockSkew},
		{"fits the screens of desktops and phones", testLayout},
		{"has readable colors in both color schemes", testContrast},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := shared.forTest(t)
			b.Run(emulation.SetTimezoneOverride("UTC"))
			test.run(b)
		})
	}
}

// open starts a fake process with a document and opens its page.
func (b browser) open(first status.Document) *process {
	b.t.Helper()
	p := newProcess(b.t, first)
	b.Run(chromedp.Navigate(p.url()))
	b.WaitForElements("body:not(.lost)")
	return p
}

// later advances the clock of the browser.
func (b browser) later(by time.Duration) {
	b.t.Helper()
	b.do(fmt.Sprintf(`{ const real = Date.now; Date.now = () => real() + %d; tick() }`, by.Milliseconds()), nil)
}

func testAnnouncements(b browser) {
	first := waiting()
	first.Attempt = 1
	p := b.open(first)
	require.True(b.t, b.evaluate(`document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log]").length === 1`), "there is one live region for screen readers")
	b.do(`{ const news = document.getElementById("news"); window.announced = [news.textContent]; new MutationObserver(() => announced.push(news.textContent)).observe(news, { childList: true }) }`, nil)
	for poll := 2; poll < 6; poll++ {
		for _, state := range []string{"Query", "Wait"} {
			p.update(func(d *status.Document) { d.State, d.Attempt, d.Reason = state, poll, fmt.Sprint("poll ", poll) })
			b.WaitFor(`document.getElementById("state").textContent === %q && document.getElementById("reason").textContent === "poll %d"`, state, poll)
		}
	}
	p.update(func(d *status.Document) { d.State, d.Attempt, d.Reason = "StartEtcd", 1, "etcd can run" })
	b.waitForText("#state", "StartEtcd")
	p.update(func(d *status.Document) {
		d.State, d.Ready, d.Reason, d.Checks = "Serving", true, "joined", checksOf("ok", "")
	})
	b.waitForText("#state", "Serving")
	p.update(func(d *status.Document) { d.Checks = checksOf("degraded", "alarm NOSPACE") })
	b.waitForText("#conditions", "NOSPACE")
	p.update(func(d *status.Document) { d.Ready = false })
	b.waitForText("#ready", "not ready")
	b.WaitFor(`announced.join("|") === "Now not ready, in Wait: %s|Entered StartEtcd, not ready: etcd can run|Now ready, in Serving: joined|Now degraded, in Serving: quorum: alarm NOSPACE|Now not ready, in Serving: joined"`, waiting().Reason)
}

func testLastError(b browser) {
	p := b.open(waiting())
	b.waitForText("#facts dd.problem", "sidecar")
	healthy := serving()
	healthy.Certificates = nil
	p.update(func(d *status.Document) { *d = healthy })
	b.waitForText("#facts dd.quiet", "connection refused, resolved ")
	require.False(b.t, b.evaluate(`document.querySelector("#facts .problem") !== null`))
	p.update(func(d *status.Document) { d.Ready = false })
	b.WaitForElements("#facts dd.problem")
	b.show(`last_error: { ...latest.last_error, over: true }`)
	b.waitForText("#facts dd.quiet", "resolved")
	b.show(`last_error: { ...latest.last_error, ended: "2001-02-03T04:05:06Z" }`)
	b.waitForText("#facts dd.quiet", "resolved 3 Feb 2001 04:05:06")
}

// show makes the page show its latest document with the given fields, in JavaScript, replaced.
func (b browser) show(fields string) {
	b.t.Helper()
	b.do(`show({ ...latest, `+fields+` })`, nil)
}

func testEscaping(b browser) {
	b.open(serving())
	b.do("window.evil = `<img src=x onerror='window.ran = true'>` + '\\x1b[31m\\r\\n\\u202edaer\\u200b'", nil)
	b.show(`reason: evil, last_exit: evil, sidecar_status: evil, member_id: evil, pod: evil, cluster_id: evil, leader: evil,
		ready: false, versions: { ...latest.versions, wrapper: evil }, last_error: { ...latest.last_error, message: evil },
		validation: { mode: evil, reason: evil }, checks: [{ name: evil, status: "failed", reason: evil }],
		transitions: [{ ...latest.transitions[0], reason: evil }], peers: [{ name: evil, id: evil, urls: [evil] }]`)
	want := "<img src=x onerror='window.ran = true'>␛[31m␍␊\\u202edaer\\u200b"
	for _, selector := range []string{"#reason", "#facts", "#checks", "#steps", "#peers", "#name", "#versions", "title", "#news"} {
		b.waitForText(selector, want)
	}
	require.True(b.t, b.evaluate(`document.querySelector("img") === null && window.ran === undefined`))
	require.False(b.t, b.evaluate(`/[\x00-\x09\x0b-\x1f\u202e\u200b]/.test(document.querySelector("main").textContent)`))
}

func testIdentity(b browser) {
	b.open(serving())
	require.False(b.t, b.evaluate(`[...document.querySelectorAll("dt")].some((name) => ["cluster", "leader", "database"].includes(name.textContent))`))
	require.NotRegexp(b.t, `undefined|null|NaN`, b.text("main"))
	require.True(b.t, b.evaluate(`document.getElementById("members").hidden`))
	b.show(member)
	b.waitForText("#name", "etcd-main-0")
	b.WaitFor(`document.title === "✓ etcd-main-0 · Serving, ready"`)
	for _, fact := range []string{
		"memberetcd-main-0, 8e9e05c52164694d", "clustercdf818194e3a8c32", "leaderetcd-main-1, term 7",
		"database2.25 GiB, 1.50 GiB in use; 28% of the quota of 8.00 GiB",
	} {
		b.waitForText("#facts", fact)
	}
	require.False(b.t, b.evaluate(`document.getElementById("members").hidden`))
	b.WaitForElements("#peers li.ok:nth-child(2)", "#peers li.failed:nth-child(3)")
	b.waitForText("#peers", "missingetcd-main-2, learner")
}

const member = `pod: "etcd-main-0", member_name: "etcd-main-0", cluster_id: "cdf818194e3a8c32", leader: "91bc3c398fb3c146", term: 7,
	db_size: 2.25 * 2 ** 30, db_in_use: 1.5 * 2 ** 30, quota: 8 * 2 ** 30, certificates: [], peers: [
	{ name: "etcd-main-0", id: "8e9e05c52164694d", urls: ["https://etcd-main-0.etcd-main-peer:2380"], active: true },
	{ name: "etcd-main-1", id: "91bc3c398fb3c146", urls: ["https://etcd-main-1.etcd-main-peer:2380"], active: true, leader: true },
	{ name: "etcd-main-2", id: "fd422379fda50e48", urls: ["https://etcd-main-2.etcd-main-peer:2380"], active: false, learner: true }]`

func testMaintenance(b browser) {
	p := b.open(defragmenting())
	for _, text := range []string{
		"running (42%): copying the data in use to a new database file", "by threshold in 2.4 s: 1.00 GiB → 5.00 MiB",
		"the snapshot for 10.0.0.7:40312, since",
	} {
		b.waitForText("#facts", text)
	}
	p.update(func(d *status.Document) {
		ended := *d.Maintenance
		ended.Phase, ended.Readers = "idle", nil
		ended.LastDefragmentation = &state.Defragmentation{At: before(0), Origin: "client", Error: "no space left on device"}
		d.Maintenance = &ended
	})
	b.waitForText("#facts", "failed, by client: no space left on device")
	b.WaitFor(`!document.getElementById("facts").textContent.includes("running")`)
}

func testBackups(b browser) {
	p := b.open(behind())
	b.WaitForElements("dd.problem")
	for _, text := range []string{
		"s3://backups/main, this member is the writer", "revisions up to 41200; 312 behind for 42 s", "4 attempts, next retry within", "revisions 1 to 31000", "revisions 32000 to 41200", "revision 40100, 37.0 MiB", "schedule", "its hash matches etcd's", "5.00 MiB of 1.00 GiB",
		"for 42 s; 900 MiB in total", "next full snapshot",
	} {
		b.waitForText("#facts", text)
	}
	p.update(func(d *status.Document) {
		healthy := *d.Backup
		healthy.Problem, healthy.LagRevisions, healthy.SpoolBytes, healthy.Windows = nil, 0, 0, nil
		d.Backup = &healthy
	})
	b.waitForText("#facts", "all revisions up to 41200")
	b.waitForText("#facts", "revisions 1 to 41200") // the page uses Window, because older wrappers do not send Windows
	b.WaitFor(`!document.getElementById("facts").textContent.includes("backups fail")`)
	p.update(func(d *status.Document) { d.Backup, d.Standalone = nil, true })
	b.WaitFor(`document.getElementById("facts").textContent.includes("backupsnone (no --backup-store)")`)
}

func testDegraded(b browser) {
	d := serving()
	d.Certificates = nil
	d.Checks[5] = status.Check{Name: "data_version", Status: "degraded", Reason: "etcd 3.5 cannot read the data (a newcomer is expected)"}
	p := b.open(d)
	b.WaitFor(`document.title === "! etcd-wrapper · Serving, degraded"`)
	b.WaitForElements("#ready.degraded", "#state_Serving.current.degraded")
	b.waitForText("#conditions details:not([open]) summary", "data_version: etcd 3.5 cannot read the data")
	b.waitForText("#conditions details p", "etcd 3.5 cannot read the data (a newcomer is expected)")
	b.waitForText("#conditions .more", "docs/runbook.md#alerts")
	b.WaitForElements("#conditions [data-copies='etcd-wrapper status']")
	require.True(b.t, b.evaluate(`document.getElementById("icon").href.includes("b47400")`))
	require.True(b.t, b.evaluate(`getComputedStyle(document.querySelector("#state_Serving rect")).fill === getComputedStyle(document.getElementById("ready")).color`), "the state and the readiness have the same color")
	p.update(func(d *status.Document) {
		d.Checks[4] = status.Check{Name: "space", Status: "degraded", Reason: "writes are rejected"}
	})
	b.WaitForElements("#ready.failed", "#now.failed", "#cause.failed", "#conditions .failed")
	p.update(func(d *status.Document) {
		d.Checks[4], d.Checks[5] = status.Check{Name: "space", Status: "ok"}, status.Check{Name: "data_version", Status: "ok"}
	})
	b.WaitForElements("#ready.ok", "#state_Serving.current:not(.degraded)")
}

func testTiles(b browser) {
	p := b.open(behind())
	b.show(member)
	b.WaitForElements("#now.degraded", "#tiles .degraded:nth-child(1)", "#tiles .ok:nth-child(2)", "#tiles [class='tile ']:nth-child(3)")
	for _, text := range []string{"42 s behind", "28% of 8.00 GiB", "2 of 3", "etcd-main-2 missing"} {
		b.waitForText("#tiles", text)
	}
	p.update(func(d *status.Document) {
		failed := *d.Backup
		failed.LastVerification = &facts.Verification{At: before(time.Hour), Reason: "the hash differs"}
		d.Backup, d.DBSize, d.Quota, d.Peers = &failed, 90, 100, []state.Peer{{Name: "etcd-main-0", Active: true, Leader: true}, {Name: "etcd-main-2"}}
		d.Checks[0] = status.Check{Name: "quorum", Status: "degraded", Reason: "etcd-main-2 is missing"}
		d.Checks[4] = status.Check{Name: "space", Status: "degraded", Reason: "writes are rejected"}
	})
	b.WaitForElements("#tiles .failed:nth-child(1)", "#tiles .failed:nth-child(2)", "#tiles .degraded:nth-child(3)")
	b.waitForText("#tiles", "read-only")
	p.update(func(d *status.Document) {
		d.Backup, d.Standalone, d.Checks = nil, true, checksOf("ok", "")
	})
	b.WaitForElements("#tiles [class='tile ']:nth-child(1)", "#tiles .degraded:nth-child(2)", "#now.degraded")
	b.waitForText("#tiles", "no --backup-store")
	b.waitForText("#conditions", "database: 90% of the quota is used")
	p.update(func(d *status.Document) { d.DBSize = 79 })
	b.WaitForElements("#tiles .ok:nth-child(2)", "#now.ok", "#cause[hidden]")
	p.update(func(d *status.Document) {
		d.State, d.Ready, d.Recovery = "Wait", false, &status.Recovery{State: "Build", RestoredBytes: 39 << 20, TotalBytes: 669 << 20, Since: before(0)}
	})
	b.waitForText("#state", "Recovery: restoring, 39 of 669 MiB")
}

func testTrends(b browser) {
	p := b.open(waiting())
	require.True(b.t, b.evaluate(`document.getElementById("trends").hidden`), "there are no trends before etcd has run")
	p.update(func(d *status.Document) { d.Trends = lastHours() })
	b.WaitFor(`document.getElementById("trends-title").textContent === "The last 2 h 13 min"`)
	for _, values := range []string{"Writes3.8 msmax 34 ms", "Database2.25 GiBmax 2.25 GiB · dashed: in use, 1.50 GiB", "Backup lag360 msmax 400 ms", "Revisions363/smax 400/s"} {
		b.WaitFor(`[...document.querySelectorAll("#series li")].some((item) => [...item.children].filter((part) => !part.matches("svg, .axis")).map((part) => part.textContent).join("") === %q)`, values)
	}
	b.WaitFor(`document.querySelectorAll("#series .axis time").length === 12`)
	require.True(b.t, b.evaluate(`document.querySelectorAll("#series .limit").length === 1`), "only the WAL fsyncs are close enough to their limit to show it")
	b.do(`{ const chart = document.querySelector("#series svg"), box = chart.getBoundingClientRect();
		chart.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width * 60 / 99 })) }`, nil)
	b.WaitFor(`/^34 ms at .*\d\d:\d\d:\d\d$/.test(document.querySelector("#series strong").textContent)`)
	require.True(b.t, b.evaluate(`document.querySelectorAll("#series li").length === 6 && document.querySelectorAll("#series .dashed").length === 1`))
	require.True(b.t, b.evaluate(`[...document.querySelectorAll("#series .solid")].map((path) => path.getAttribute("d").match(/M/g).length).join() === "2,2,1,1,1,1"`),
		"there is a gap where points are missing")
	require.False(b.t, b.evaluate(`document.getElementById("series").innerHTML.includes("NaN")`))
	p.update(func(d *status.Document) {
		nothing := status.Points{float32(math.NaN())}
		d.Trends = &status.Trends{Interval: 5, Write: nothing, Read: nothing, Fsync: nothing, DBSize: status.Points{0}, DBInUse: nothing, BackupLag: nothing, Revisions: nothing}
	})
	b.WaitFor(`document.querySelector("#series strong").textContent === "0 B" && document.querySelectorAll("#series li").length === 1`)
}

func testTimeline(b browser) {
	b.open(serving())
	b.WaitFor(`document.querySelector("#happened li").textContent.endsWith("✓ok: ready")`)
	b.WaitForElements("#happened li.ok:nth-child(2)", "#happened li.failed:nth-child(4)", "#happened li.degraded:nth-child(5)")
	b.waitForText("#happened li:nth-child(4)", "✗failed: sidecar: cannot ask")
}

func testCopyCommands(b browser) {
	d := waiting()
	d.Reason = "the member was lost, but --recover=never; start with --recover=auto to restore it, or see etcdctl member list on another member"
	d.Checks = checksOf("ok", "")
	d.Checks[0] = status.Check{Name: "quorum", Status: "failed", Reason: "it is not promoted automatically: run etcdctl member promote 8e9e05c52164694d; etcd-wrapper status shows more"}
	p := b.open(d)
	b.WaitFor(`[...document.querySelectorAll("#reason code, #checks code")].map((command) => command.textContent).join("|") ===
		"--recover=auto|etcdctl member list|etcdctl member promote 8e9e05c52164694d|etcd-wrapper status"`)
	require.Equal(b.t, d.Reason, strings.ReplaceAll(b.text("#reason"), " Copy", ""), "the text of the reason is unchanged")
	require.True(b.t, b.evaluate(`document.querySelector("#reason button").ariaLabel === "Copy --recover=auto"`))
	b.do(`document.querySelector("#checks button").focus()`, nil)
	p.update(func(d *status.Document) { d.Checks[1].Status = "degraded" })
	b.WaitForElements("#checks .quiet:nth-child(2)")
	b.WaitFor(`document.querySelector("#checks").textContent.includes("degraded") && document.activeElement === document.querySelector("#checks button")`)
	b.do(`Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async (text) => { window.clipped = text } } })`, nil)
	b.Run(chromedp.KeyEvent("\r"))
	b.WaitFor(`window.clipped === "etcdctl member promote 8e9e05c52164694d" && document.querySelector("#checks button").textContent === "Copied"`)
	b.do(`navigator.clipboard.writeText = async () => { throw new Error("refused") }`, nil)
	b.Run(chromedp.Click("#reason button:last-of-type", chromedp.ByQuery))
	b.WaitFor(`document.querySelector("#reason button:last-of-type").textContent === "Selected" && String(getSelection()) === "etcdctl member list"`)
}

func testExitReason(b browser) {
	p := b.open(serving())
	require.True(b.t, b.evaluate(`document.getElementById("ended").hidden`))
	p.kill()
	b.waitForText("#ended", "If the process has ended, its log and its termination message")
	p.update(func(d *status.Document) {
		d.Started, d.LastExit, d.LastExitReason = before(0), "crash", "a panic; see etcd-wrapper status"
	})
	p.start()
	b.waitForText("#ended", "The previous process has ended: crash: a panic; see etcd-wrapper status")
	b.WaitForElements("#ended [data-copies]")
	b.waitForText("#news", "has ended: crash: a panic; see etcd-wrapper status. Now ready, in Serving")
	p.update(func(d *status.Document) {
		d.State, d.Ready, d.Reason = "Terminated", false, "everything the next start needs is on disk"
		d.Transitions = append(slices.Clone(d.Transitions), status.Transition{At: before(0), From: "Serving", To: "Terminating", Event: "signal", Reason: "stop requested (terminated)"},
			status.Transition{At: before(0), From: "Terminating", To: "Terminating", Reason: "etcd was closed cleanly"})
	})
	ended := "The process has ended: stop requested (terminated); everything the next start needs is on disk."
	b.waitForText("#ended", ended)
	p.kill()
	b.WaitForElements("body.lost")
	require.Equal(b.t, ended, b.text("#ended"))
}

func testRecovery(b browser) {
	p := b.open(recovering())
	b.WaitFor(`document.getElementById("state").textContent === "Recovery: restoring, 39 of 669 MiB"`)
	b.WaitForElements(".machine[hidden]", "#recovery:not([hidden])", "#progress:not([hidden])", "#recovery-steps .current[aria-current=step]")
	require.True(b.t, b.evaluate(`Math.abs(document.getElementById("progress").value - 39 / 669) < 0.001`))
	b.waitForText("#left", "Step 4 of 8: 39.0 MiB of 669 MiB, 20.0 MiB/s, ")
	b.waitForText("#recovery-steps .current", "restoring")
	p.update(func(d *status.Document) {
		next := *d.Recovery
		next.State, next.RestoredBytes, next.TotalBytes = "Install", 0, 0
		d.Recovery = &next
	})
	b.waitForText("#recovery-steps .current", "installing the data")
	b.waitForText("#recovery-steps .done:nth-child(4)", "restoring")
	b.WaitForElements("#progress[hidden]")
	p.update(func(d *status.Document) {
		ready := *d.Recovery
		ready.State = "Ready"
		d.State, d.Recovery = "FetchConfig", &ready
	})
	b.WaitForElements(".machine:not([hidden])", "#recovery[hidden]")
}

func testDiagramSize(b browser) {
	p := b.open(serving())
	height := func() (pixels float64) {
		b.do(`document.querySelector("#diagram svg").getBoundingClientRect().height`, &pixels)
		return pixels
	}
	b.WaitForElements(".machine.small")
	require.LessOrEqual(b.t, height(), 190.0)
	b.waitForText("#details", "etcd is running; readiness is checked")
	require.False(b.t, b.evaluate(`document.querySelector("#details .rows").checkVisibility()`))
	b.Run(chromedp.Click("#state_Serving", chromedp.ByQuery))
	b.WaitForElements(".machine:not(.small)")
	require.Greater(b.t, height(), 400.0, "the diagram is enlarged")
	b.Run(chromedp.KeyEvent("\x1b"))
	b.WaitForElements(".machine.small")
	p.update(func(d *status.Document) { d.State = "Terminating" })
	b.WaitForElements(".machine:not(.small)")
	require.Greater(b.t, height(), 400.0)
}

func testRestorePoints(b browser) {
	d := behind()
	start := time.Date(2001, 2, 3, 4, 0, 0, 0, time.UTC)
	d.Backup.Windows = []facts.GenerationWindow{
		{Generation: 1, Window: facts.Window{FromRevision: 1, ToRevision: 9, From: start, To: start.Add(time.Hour)}, FullSnapshots: []facts.SnapshotMark{
			{Revision: 1, At: start, RestoreTest: "passed"}, {Revision: 5, At: start.Add(time.Minute), RestoreTest: "failed"},
		}},
		{Generation: 2, Window: facts.Window{FromRevision: 1000, ToRevision: 1009, From: before(time.Hour), To: before(0)}, FullSnapshots: []facts.SnapshotMark{{Revision: 1000, At: before(time.Hour)}}},
	}
	b.open(d)
	b.WaitForElements("#bar .hue1", "#bar .hue2", "#bar .test.passed", "#bar .test.failed")
	require.True(b.t, b.evaluate(`document.querySelectorAll("#bar .tick").length === 3`))
	b.waitForText("#generations", "generation 1: 2 full snapshots, 1 tested, 1 failed")
	b.waitForText("#facts", "revisions 1 to 9")
	b.waitForText("#facts", "revisions 1000 to 1009")
	b.waitForText("#back-line", "--restore-to=time:"+time.Now().UTC().Format("2006-"))
	b.do(`document.getElementById("bar").dispatchEvent(new MouseEvent("click", { clientX: document.getElementById("bar").getBoundingClientRect().left }))`, nil)
	b.waitForText("#back-line", "--restore-to=time:2001-02-03T04:00:00Z --restore-id=back-to-20010203t040000z")
	b.Run(chromedp.EmulateViewport(390, 800))
	b.WaitFor(`document.querySelectorAll("#back-line .whole").length === 2 && [...document.querySelectorAll("#back-line .whole")].every((flag) => flag.offsetHeight < 30)`)
	b.tabTo("back-to")
	b.Run(chromedp.KeyEvent(kb.ArrowRight))
	b.waitForText("#back-line", "--restore-to=time:2001-02-03T05:00:00Z") // the next restore point falls into the gap
	b.waitForText("#back-at", "generation 1")
	b.Run(chromedp.Click("#back-copy", chromedp.ByQuery))
	b.WaitFor(`["Copied", "Selected"].includes(document.getElementById("back-copy").textContent)`)
}

func testTimeZone(b browser) {
	d := serving()
	d.Since, d.Started = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC), before(90*time.Minute)
	b.Run(emulation.SetTimezoneOverride("Asia/Kolkata"))
	b.open(d)
	b.waitForText("#zone", "times in UTC+05:30 (Asia/")
	b.waitForText("#facts", "3 Feb 2001 09:35:06, for ")
	b.WaitForElements(`#facts time[datetime="2001-02-03T04:05:06.000Z"]`)
	b.waitForText("#facts", ", 1 h ago")
	b.later(48 * time.Hour)
	b.waitForText("#facts", ", 2 d ago")
}

func testClockSkew(b browser) {
	var skew page.ScriptIdentifier
	b.Run(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		skew, err = page.AddScriptToEvaluateOnNewDocument(`{ const real = Date.now; Date.now = () => real() + 7200000 }`).Do(ctx)
		return err
	}))
	d := serving()
	d.Since = before(210 * time.Minute)
	b.open(d)
	b.waitForText("#facts", "for 3 h")
	b.Run(page.RemoveScriptToEvaluateOnNewDocument(skew))
}
