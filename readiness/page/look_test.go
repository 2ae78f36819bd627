package page_test

import (
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/page/chromiumtest"
	"etcd-wrapper/readiness/status"
)

func lightWhatWasTaken(b browser) {
	b.open(waiting())
	b.WaitForElements("#edge_Query_Wait.visited", "#edge_Wait_Query.visited", "#edge_Query_Trigger:not(.visited)", "#state_Wait.current[aria-current=step]")
	require.Equal(b.t, "×17", b.Text("#edge_Query_Wait .badge"), "both reasons together")
	require.Contains(b.t, b.Text("#details"), "wait before asking again", "the details follow the state")
	b.Run(chromedp.Click("#edge_Query_Wait .badge", chromedp.ByQuery))
	b.WaitForText("#details-title", "Query → Wait")
	b.WaitFor(`[...document.querySelectorAll("#details .taken")].map((row) => row.querySelector("strong").textContent + row.querySelector(".count").textContent).join() ===
		"replied×1,no answer×16"`)
	require.True(b.t, b.Evaluate(`document.querySelectorAll("#details .rows li:not(.taken)").length >= 2`), "one of them for the same event")
	require.Contains(b.t, b.Text("#details .taken"), "if Failed")
	b.Run(chromedp.Click("#close", chromedp.ByQuery))
	b.WaitForText("#details-title", "Wait")
}

func leadToTheFullPicture(b browser) {
	b.open(serving())
	var to string
	b.Do(`document.querySelector(".hint a").href`, &to)
	b.Run(chromedp.Navigate(to))
	b.WaitForElements("svg:root #state_Query", "svg:root #edge_Query_Wait")
}

func useTheKeyboard(b browser) {
	b.open(serving())
	b.TabTo("state_Query", "edge_Query_Wait")
	require.True(b.t, b.Evaluate(`getComputedStyle(document.querySelector("#edge_Query_Wait .grip")).stroke !== getComputedStyle(document.querySelector("#edge_Query_Trigger .grip")).stroke`), "the focus is seen")
	require.True(b.t, b.Evaluate(`document.activeElement.getAttribute("role") === "button" && document.activeElement.getAttribute("aria-label") === "Query to Wait, ×25"`))
	b.Run(chromedp.KeyEvent("\r"))
	b.WaitFor(`document.activeElement.id === "details" && document.getElementById("details-title").textContent === "Query → Wait"`)
	b.WaitForElements("#edge_Query_Wait[aria-expanded=true]")
	b.Run(chromedp.KeyEvent("\x1b"))
	b.WaitFor(`document.activeElement.id === "edge_Query_Wait" && document.getElementById("details-title").textContent === "Serving"`)
	b.TabTo("state_Serving")
	b.Run(chromedp.KeyEvent(" "))
	b.WaitFor(`document.activeElement.id === "details"`)
	b.Run(chromedp.KeyEvent("\x1b"))
	b.TabTo("timeline")
}

func fitTheScreen(b browser) {
	p := b.open(serving())
	b.show(member)
	for _, size := range []chromiumtest.Size{chromiumtest.Desk, chromiumtest.Wide, chromiumtest.Phone} {
		b.Show(size, chromiumtest.Light)
		b.WaitFor(`innerWidth === %d`, size.Width)
		require.True(b.t, b.Evaluate(`document.documentElement.scrollWidth <= innerWidth`), "nothing sticks out at %d", size.Width)
	}
	p.update(func(d *status.Document) {
		d.State, d.Ready, d.Reason = "StartEtcd", false, "starting etcd"
	})
	b.WaitForText("#state", "StartEtcd")
	for _, size := range []chromiumtest.Size{chromiumtest.Desk, chromiumtest.Wide, chromiumtest.Phone} {
		b.Show(size, chromiumtest.Light)
		b.WaitFor(`innerWidth === %d`, size.Width)
		require.True(b.t, b.Evaluate(`document.documentElement.scrollWidth <= innerWidth`), "nothing sticks out at %d", size.Width)
		require.True(b.t, b.Evaluate(`document.querySelector("#diagram svg").getBoundingClientRect().bottom <= innerHeight`), "the first screen has all of it at %d", size.Width)
		require.True(b.t, b.Evaluate(`document.querySelector(".node text").getBoundingClientRect().height >= 13`), "readable at %d", size.Width)
		require.True(b.t, b.Evaluate(`[...document.querySelectorAll(".visited .badge rect")].every((badge) => {
			const a = badge.getBoundingClientRect();
			return [...document.querySelectorAll(".node text")].every((text) => {
				const b = text.getBoundingClientRect();
				return a.right < b.left || b.right < a.left || a.bottom < b.top || b.bottom < a.top })})`), "counts cover no text at %d", size.Width)
	}
	b.Run(chromedp.Click("#edge_Terminating_Terminated", chromedp.ByQuery))
	b.WaitFor(`document.querySelector("#edge_Terminating_Terminated").getBoundingClientRect().bottom <= document.querySelector("#details").getBoundingClientRect().top`)
	b.Show(chromiumtest.Desk, chromiumtest.Light)
}

func beLegible(b browser) {
	p := b.open(waiting())
	b.contrast("with trouble")
	b.Run(chromedp.Click("#edge_Query_Wait .badge", chromedp.ByQuery))
	b.WaitForElements("body.chosen")
	b.Run(chromedp.KeyEvent("\x1b"))
	p.update(func(d *status.Document) { *d = recovering() })
	b.WaitForText("#state", "Recovery")
	b.contrast("with a recovery")
	p.update(func(d *status.Document) { *d = well() })
	b.Run(chromedp.Reload()) // another process would be said to have taken the place of this one
	b.WaitForText("#state", "Serving")
	b.show(member)
	b.Do(`document.activeElement.blur()`, nil)
	b.Run(chromedp.MouseEvent(input.MouseMoved, 2, 2))
	b.contrast("serving")
	p.update(func(d *status.Document) { *d = behind() })
	b.WaitForText("#ready", "degraded")
	b.show(member)
	b.WaitFor(`[...document.querySelectorAll("a, button, input, progress, section, [role], [tabindex]")].filter((part) =>
		!(part.ariaLabel || document.getElementById(part.getAttribute("aria-labelledby"))?.textContent || part.textContent.trim())).length === 0`)
	b.contrast("degraded")
	p.kill()
	b.WaitForElements("body.lost")
	b.contrast("grey")
}

// contrast sees that every text can be read.
func (b browser) contrast(when string) {
	b.t.Helper()
	for _, preference := range []string{chromiumtest.Light, chromiumtest.Dark} {
		b.Show(chromiumtest.Desk, preference)
		require.Empty(b.t, b.UnreadableText(), "%s, %s", when, preference)
	}
	b.Show(chromiumtest.Desk, chromiumtest.Light)
}
