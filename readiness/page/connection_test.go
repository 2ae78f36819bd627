package page_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func greyAndLiveAgain(b browser) {
	p := b.open(serving())
	b.Shows("#link", "live")
	b.Holds(`document.title === "✓ etcd-wrapper · Serving, ready"`)
	b.later(time.Hour)
	b.Shows("#facts", "for 1 h")

	p.kill()
	b.Has("body.lost", "#link:not(.live)")
	b.Shows("#link", "as of ")
	b.Shows("#ready", "was ready")
	b.Holds(`/^\? etcd-wrapper · as of (.* )?\d\d:\d\d:\d\d$/.test(document.title)`)
	b.Shows("#news", "No connection.")
	require.True(b.t, b.Is(`[...document.querySelectorAll("#ready, .verdict, #state, #facts dd, .node.current rect")].every((shown) => {
		const colours = getComputedStyle(shown)[shown.matches("rect") ? "fill" : "color"].match(/\d+/g).map(Number);
		return Math.max(...colours) - Math.min(...colours) < 40 })`),
		"everything is grey")
	stood := b.Text("#facts")
	b.later(time.Hour)
	require.Equal(b.t, stood, b.Text("#facts"), "no clock goes on")

	p.update(func(d *status.Document) { *d = waiting() })
	p.start()
	b.Has("body:not(.lost)")
	b.Shows("#state", "Wait")
	b.Holds(`document.title === "✗ etcd-wrapper · Wait, not ready"`)
	b.Has("#edge_Query_Trigger:not(.visited)", "#state_Serving:not(.visited)")
}

func greyInSilence(b browser) {
	p := b.open(serving())
	p.mu.Lock() // nobody gets a document, and the connection stands
	b.later(13 * time.Second)
	b.Has("body.lost")
	b.Shows("#link", "as of ")
	p.mu.Unlock()
	b.Has("body:not(.lost)")
}

func sayTheEnd(b browser) {
	p := b.open(serving())
	p.update(func(d *status.Document) { d.State, d.Ready = "Terminated", false })
	b.Shows("#state", "Terminated")
	p.kill()
	b.Shows("#link", "the process has ended")
	require.Equal(b.t, "not ready", b.Text("#ready"))
}
