package page_test

import (
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func testVisitedTransitions(b browser) {
	b.open(waiting())
	b.WaitForElements("#edge_Query_Wait.visited", "#edge_Wait_Query.visited", "#edge_Query_Trigger:not(.visited)", "#state_Wait.current[aria-current=step]")
	require.Equal(b.t, "×17", b.text("#edge_Query_Wait .badge"), "the count includes all transitions between the two states")
	require.Contains(b.t, b.text("#details"), "wait before the next query", "the details describe the current state")
	b.Run(chromedp.Click("#edge_Query_Wait .badge", chromedp.ByQuery))
	b.waitForText("#details-title", "Query → Wait")
	b.WaitFor(`[...document.querySelectorAll("#details .taken")].map((row) => row.querySelector("strong").textContent + row.querySelector(".count").textContent).join() ===
		"replied×1,no answer×16"`)
	require.True(b.t, b.evaluate(`document.querySelectorAll("#details .rows li:not(.taken)").length >= 2`), "transitions that were not taken are listed as well")
	require.Contains(b.t, b.text("#details .taken"), "if Failed")
	b.Run(chromedp.Click("#close", chromedp.ByQuery))
	b.waitForText("#details-title", "Wait")
}

func testDiagramLink(b browser) {
	b.open(serving())
	var to string
	b.do(`document.querySelector(".hint a").href`, &to)
	b.Run(chromedp.Navigate(to))
	b.WaitForElements("svg:root #state_Query", "svg:root #edge_Query_Wait")
}

func testKeyboard(b browser) {
	b.open(serving())
	b.tabTo("state_Query", "edge_Query_Wait")
	require.True(b.t, b.evaluate(`getComputedStyle(document.querySelector("#edge_Query_Wait .grip")).stroke !== getComputedStyle(document.querySelector("#edge_Query_Trigger .grip")).stroke`), "the focus is visible")
	require.True(b.t, b.evaluate(`document.activeElement.getAttribute("role") === "button" && document.activeElement.getAttribute("aria-label") === "Query to Wait, ×25"`))
	b.Run(chromedp.KeyEvent("\r"))
	b.WaitFor(`document.activeElement.id === "details" && document.getElementById("details-title").textContent === "Query → Wait"`)
	b.WaitForElements("#edge_Query_Wait[aria-expanded=true]")
	b.Run(chromedp.KeyEvent("\x1b"))
	b.WaitFor(`document.activeElement.id === "edge_Query_Wait" && document.getElementById("details-title").textContent === "Serving"`)
	b.tabTo("state_Serving")
	b.Run(chromedp.KeyEvent(" "))
	b.WaitFor(`document.activeElement.id === "details"`)
	b.Run(chromedp.KeyEvent("\x1b"))
	b.tabTo("timeline")
}

func testLayout(b browser) {
	p := b.open(serving())
	b.show(member)
	for _, window := range []size{desk, wide, phone} {
		b.setWindow(window, light)
		b.WaitFor(`innerWidth === %d`, window.width)
		require.True(b.t, b.evaluate(`document.documentElement.scrollWidth <= innerWidth`), "no horizontal scrolling at a width of %d", window.width)
	}
	p.update(func(d *status.Document) {
		d.State, d.Ready, d.Reason = "StartEtcd", false, "starting etcd"
	})
	b.waitForText("#state", "StartEtcd")
	for _, window := range []size{desk, wide, phone} {
		b.setWindow(window, light)
		b.WaitFor(`innerWidth === %d`, window.width)
		require.True(b.t, b.evaluate(`document.documentElement.scrollWidth <= innerWidth`), "no horizontal scrolling at a width of %d", window.width)
		require.True(b.t, b.evaluate(`document.querySelector("#diagram svg").getBoundingClientRect().bottom <= innerHeight`), "the whole diagram is on the first screen at a width of %d", window.width)
		require.True(b.t, b.evaluate(`document.querySelector(".node text").getBoundingClientRect().height >= 13`), "the state names are large enough at a width of %d", window.width)
		require.True(b.t, b.evaluate(`[...document.querySelectorAll(".visited .badge rect")].every((badge) => {
			const a = badge.getBoundingClientRect();
			return [...document.querySelectorAll(".node text")].every((text) => {
				const b = text.getBoundingClientRect();
				return a.right < b.left || b.right < a.left || a.bottom < b.top || b.bottom < a.top })})`), "counts do not overlap state names at a width of %d", window.width)
	}
	b.Run(chromedp.Click("#edge_Terminating_Terminated", chromedp.ByQuery))
	b.WaitFor(`document.querySelector("#edge_Terminating_Terminated").getBoundingClientRect().bottom <= document.querySelector("#details").getBoundingClientRect().top`)
	b.setWindow(desk, light)
}

func testContrast(b browser) {
	p := b.open(waiting())
	b.contrast("with an error")
	b.Run(chromedp.Click("#edge_Query_Wait .badge", chromedp.ByQuery))
	b.WaitForElements("body.chosen")
	b.Run(chromedp.KeyEvent("\x1b"))
	p.update(func(d *status.Document) { *d = recovering() })
	b.waitForText("#state", "Recovery")
	b.contrast("during a recovery")
	p.update(func(d *status.Document) { *d = well() })
	b.Run(chromedp.Reload()) // otherwise, the page would report a different process
	b.waitForText("#state", "Serving")
	b.show(member)
	b.do(`document.activeElement.blur()`, nil)
	b.Run(chromedp.MouseEvent(input.MouseMoved, 2, 2))
	b.contrast("serving")
	p.update(func(d *status.Document) { *d = behind() })
	b.waitForText("#ready", "degraded")
	b.show(member)
	b.WaitFor(`[...document.querySelectorAll("a, button, input, progress, section, [role], [tabindex]")].filter((part) =>
		!(part.ariaLabel || document.getElementById(part.getAttribute("aria-labelledby"))?.textContent || part.textContent.trim())).length === 0`)
	b.contrast("degraded")
	p.kill()
	b.WaitForElements("body.lost")
	b.contrast("without a connection")
}

// contrast requires that all text is readable in both color schemes. when describes the state of the page.
func (b browser) contrast(when string) {
	b.t.Helper()
	for _, preference := range []string{light, dark} {
		b.setWindow(desk, preference)
		require.Empty(b.t, b.unreadableText(), "%s, %s", when, preference)
	}
	b.setWindow(desk, light)
}
