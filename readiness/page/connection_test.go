package page_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func testReconnect(b browser) {
	p := b.open(serving())
	b.waitForText("#link", "live")
	b.WaitFor(`document.title === "✓ etcd-wrapper · Serving, ready"`)
	b.later(time.Hour)
	b.waitForText("#facts", "for 1 h")

	p.kill()
	b.WaitForElements("body.lost", "#link:not(.live)")
	b.waitForText("#link", "as of ")
	b.waitForText("#ready", "was ready")
	b.WaitFor(`/^\? etcd-wrapper · as of (.* )?\d\d:\d\d:\d\d$/.test(document.title)`)
	b.waitForText("#news", "Connection lost.")
	require.True(b.t, b.evaluate(`[...document.querySelectorAll("#ready, .verdict, #state, #facts dd, .node.current rect")].every((shown) => {
		const colours = getComputedStyle(shown)[shown.matches("rect") ? "fill" : "color"].match(/\d+/g).map(Number);
		return Math.max(...colours) - Math.min(...colours) < 40 })`),
		"all highlighted elements are grey")
	before := b.text("#facts")
	b.later(time.Hour)
	require.Equal(b.t, before, b.text("#facts"), "ages do not increase without a connection")

	p.update(func(d *status.Document) { *d = waiting() })
	p.start()
	b.WaitForElements("body:not(.lost)")
	b.waitForText("#state", "Wait")
	b.WaitFor(`document.title === "✗ etcd-wrapper · Wait, not ready"`)
	b.WaitForElements("#edge_Query_Trigger:not(.visited)", "#state_Serving:not(.visited)")
}

func testSilentConnection(b browser) {
	p := b.open(serving())
	p.mu.Lock() // no document can be sent while the lock is held
	b.later(13 * time.Second)
	b.WaitForElements("body.lost")
	b.waitForText("#link", "as of ")
	p.mu.Unlock()
	b.WaitForElements("body:not(.lost)")
}

func testEndOfRun(b browser) {
	p := b.open(serving())
	p.update(func(d *status.Document) { d.State, d.Ready = "Terminated", false })
	b.waitForText("#state", "Terminated")
	p.kill()
	b.waitForText("#link", "the process has ended")
	require.Equal(b.t, "not ready", b.text("#ready"))
}
