package page_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/page/chromium"
	"etcd-wrapper/readiness/status"
)

// The page in a real browser, which all of these share.
func TestInABrowserThePage(t *testing.T) {
	tab := chromium.Open(t)
	for _, story := range []struct {
		name string
		play func(browser)
	}{
		{"turns grey without a connection, and live again by itself", greyAndLiveAgain},
		{"turns grey when the process is silent, though the connection stands", greyInSilence},
		{"says that a run has ended", sayTheEnd},
		{"lights the reasons that were taken and no others", lightWhatWasTaken},
		{"leads to the full picture", leadToTheFullPicture},
		{"is used with the keyboard alone", useTheKeyboard},
		{"says aloud what changes, and not each poll", sayWhatChanges},
		{"is alarmed by a trouble as long as it lasts", alarmWhileItLasts},
		{"shows hidden characters and runs nothing that it shows", showHiddenCharacters},
		{"tells who this is, as far as that is known", tellWhoThisIs},
		{"tells how far a defragmentation is, and who is in its way", tellOfUpkeep},
		{"tells how far the backups are, and is alarmed by what is wrong with them", tellOfBackups},
		{"tells times in the reader's zone, with their date", tellTimes},
		{"counts by the clock of the process, not by the reader's", countByTheProcess},
		{"fits a desk and a phone", fitTheScreen},
		{"is legible, light and dark, live and grey", beLegible},
	} {
		t.Run(story.name, func(t *testing.T) {
			tab := tab.In(t)
			tab.Run(emulation.SetTimezoneOverride("UTC"))
			story.play(browser{tab, t})
		})
	}
}

// browser is the shared one in the hands of one test.
type browser struct {
	*chromium.Tab
	t *testing.T
}

// open lets the browser open the page of a process.
func (b browser) open(first status.Document) *process {
	b.t.Helper()
	p := newProcess(b.t, first)
	b.Run(chromedp.Navigate(p.url()))
	b.Has("body:not(.lost)")
	return p
}

// later moves the browser's clock on, as if so much time had gone by.
func (b browser) later(by time.Duration) {
	b.t.Helper()
	b.Do(fmt.Sprintf(`{ const real = Date.now; Date.now = () => real() + %d; tick() }`, by.Milliseconds()), nil)
}

func sayWhatChanges(b browser) {
	first := waiting()
	first.Attempt = 1
	p := b.open(first)
	require.True(b.t, b.Is(`document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log]").length === 1`), "one voice")
	b.Do(`{ const news = document.getElementById("news"); window.said = [news.textContent]; new MutationObserver(() => said.push(news.textContent)).observe(news, { childList: true }) }`, nil)
	for poll := 2; poll < 6; poll++ {
		for _, state := range []string{"Query", "Wait"} {
			p.tell(func(d *status.Document) { d.State, d.Attempt, d.Reason = state, poll, fmt.Sprint("poll ", poll) })
			b.Holds(`document.getElementById("state").textContent === %q && document.getElementById("reason").textContent === "poll %d"`, state, poll)
		}
	}
	p.tell(func(d *status.Document) { d.State, d.Attempt, d.Reason = "StartEtcd", 1, "etcd can run" })
	b.Shows("#state", "StartEtcd")
	p.tell(func(d *status.Document) { d.State, d.Ready, d.Reason = "Serving", true, "joined" })
	b.Shows("#state", "Serving")
	p.tell(func(d *status.Document) { d.Checks = verdicts("degraded", "alarm NOSPACE") })
	b.Shows("#checks", "NOSPACE")
	p.tell(func(d *status.Document) { d.Ready = false })
	b.Shows("#ready", "not ready")
	b.Holds(`said.join("|") === "Now not ready, in Wait: %s|Entered StartEtcd, not ready: etcd can run|Now ready, in Serving: joined|Now not ready, in Serving: joined"`, waiting().Reason)
}

func alarmWhileItLasts(b browser) {
	p := b.open(waiting())
	b.Shows("#facts dd.trouble", "sidecar")
	healthy := serving()
	healthy.Certificates = nil
	p.tell(func(d *status.Document) { *d = healthy })
	b.Shows("#facts dd.quiet", "connection refused — over since ")
	require.False(b.t, b.Is(`document.querySelector("#facts .trouble") !== null`))
	p.tell(func(d *status.Document) { d.Ready = false })
	b.Has("#facts dd.trouble")
	b.show(`last_error: { ...latest.last_error, over: true }`)
	b.Shows("#facts dd.quiet", "over")
	b.show(`last_error: { ...latest.last_error, ended: "2001-02-03T04:05:06Z" }`)
	b.Shows("#facts dd.quiet", "over since 3 Feb 2001 04:05:06")
}

// show lets the page show its newest document with other fields.
func (b browser) show(fields string) {
	b.t.Helper()
	b.Do(`show({ ...latest, `+fields+` })`, nil)
}

func showHiddenCharacters(b browser) {
	b.open(serving())
	b.Do("window.evil = `<img src=x onerror='window.ran = true'>` + '\\x1b[31m\\r\\n\\u202edaer\\u200b'", nil)
	b.show(`reason: evil, last_exit: evil, sidecar_word: evil, member_id: evil, pod: evil, cluster_id: evil, leader: evil,
		ready: false, versions: { ...latest.versions, wrapper: evil }, last_error: { ...latest.last_error, message: evil },
		validation: { mode: evil, reason: evil }, checks: [{ name: evil, status: "failed", reason: evil }],
		transitions: [{ ...latest.transitions[0], reason: evil }], peers: [{ name: evil, id: evil, urls: [evil] }]`)
	want := "<img src=x onerror='window.ran = true'>␛[31m␍␊\\u202edaer\\u200b"
	for _, place := range []string{"#reason", "#facts", "#checks", "#steps", "#peers", "#name", "#versions", "title", "#news"} {
		b.Shows(place, want)
	}
	require.True(b.t, b.Is(`document.querySelector("img") === null && window.ran === undefined`))
	require.False(b.t, b.Is(`/[\x00-\x09\x0b-\x1f\u202e\u200b]/.test(document.querySelector("main").textContent)`))
}

func tellWhoThisIs(b browser) {
	b.open(serving())
	require.False(b.t, b.Is(`[...document.querySelectorAll("dt")].some((name) => ["cluster", "leader", "database"].includes(name.textContent))`))
	require.NotRegexp(b.t, `undefined|null|NaN`, b.Text("main"))
	require.True(b.t, b.Is(`document.getElementById("members").hidden`))
	b.show(member)
	b.Shows("#name", "etcd-main-0")
	b.Holds(`document.title === "✓ etcd-main-0 · Serving, ready"`)
	for _, fact := range []string{
		"memberetcd-main-0, 8e9e05c52164694d", "clustercdf818194e3a8c32", "leaderetcd-main-1, term 7",
		"database2.25 GiB, 1.50 GiB of it in use; 28% of its quota of 8.00 GiB",
	} {
		b.Shows("#facts", fact)
	}
	require.False(b.t, b.Is(`document.getElementById("members").hidden`))
	b.Has("#peers li.ok:nth-child(2)", "#peers li.failed:nth-child(3)")
	b.Shows("#peers", "missingetcd-main-2, learner")
}

const member = `pod: "etcd-main-0", member_name: "etcd-main-0", cluster_id: "cdf818194e3a8c32", leader: "91bc3c398fb3c146", term: 7,
	db_size: 2.25 * 2 ** 30, db_in_use: 1.5 * 2 ** 30, quota: 8 * 2 ** 30, certificates: [], peers: [
	{ name: "etcd-main-0", id: "8e9e05c52164694d", urls: ["https://etcd-main-0.etcd-main-peer:2380"], active: true },
	{ name: "etcd-main-1", id: "91bc3c398fb3c146", urls: ["https://etcd-main-1.etcd-main-peer:2380"], active: true, leader: true },
	{ name: "etcd-main-2", id: "fd422379fda50e48", urls: ["https://etcd-main-2.etcd-main-peer:2380"], active: false, learner: true }]`

func tellOfUpkeep(b browser) {
	p := b.open(defragmenting())
	for _, told := range []string{
		"running (42%): etcd copies what is in use of its database", "by threshold, in 2.4 s: 1.00 GiB are 5.00 MiB now",
		"the snapshot for 10.0.0.7:40312, since",
	} {
		b.Shows("#facts", told)
	}
	p.tell(func(d *status.Document) {
		ended := *d.Upkeep
		ended.Phase, ended.Readers = "idle", nil
		ended.Last = &status.Defragmentation{At: before(0), Origin: "client", Error: "no space left on device"}
		d.Upkeep = &ended
	})
	b.Shows("#facts", "not, by client: no space left on device")
	b.Holds(`!document.getElementById("facts").textContent.includes("running")`)
}

func tellOfBackups(b browser) {
	p := b.open(behind())
	b.Has("dd.trouble")
	for _, told := range []string{
		"s3://backups/main, this member writes", "up to revision 41200; 312 behind, for 42 s", "connection refused; since",
		"4 times; next try within", "revisions 1 to 41200", "revision 40100, 37.0 MiB", "schedule", "the hash is etcd's own", "5.00 MiB of 1.00 GiB",
		"for 42 s; 900 MiB in all", "next full",
	} {
		b.Shows("#facts", told)
	}
	p.tell(func(d *status.Document) {
		well := *d.Backup
		well.Trouble, well.BehindRevisions, well.SpoolBytes = nil, 0, 0
		d.Backup = &well
	})
	b.Shows("#facts", "everything up to revision 41200")
	b.Holds(`!document.getElementById("facts").textContent.includes("backup trouble")`)
	p.tell(func(d *status.Document) { d.Backup, d.Standalone = nil, true })
	b.Holds(`document.getElementById("facts").textContent.includes("backupsnone (no --backup-store)")`)
}

func tellTimes(b browser) {
	d := serving()
	d.Since, d.Started = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC), before(90*time.Minute)
	b.Run(emulation.SetTimezoneOverride("Asia/Kolkata"))
	b.open(d)
	b.Shows("#zone", "times in UTC+05:30 (Asia/")
	b.Shows("#facts", "3 Feb 2001 09:35:06, for ")
	b.Has(`#facts time[datetime="2001-02-03T04:05:06.000Z"]`)
	b.Shows("#facts", ", 1 h ago")
	b.later(48 * time.Hour)
	b.Shows("#facts", ", 2 d ago")
}

func countByTheProcess(b browser) {
	var wrong page.ScriptIdentifier
	b.Run(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		wrong, err = page.AddScriptToEvaluateOnNewDocument(`{ const real = Date.now; Date.now = () => real() + 7200000 }`).Do(ctx)
		return err
	}))
	d := serving()
	d.Since = before(210 * time.Minute)
	b.open(d)
	b.Shows("#facts", "for 3 h")
	b.Run(page.RemoveScriptToEvaluateOnNewDocument(wrong))
}
