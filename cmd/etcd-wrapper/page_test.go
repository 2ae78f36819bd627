package main

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/page/chromium"
)

// The whole life of a member, seen through the page.
func TestThePageShowsARunFromQueryToTerminated(t *testing.T) {
	tab := chromium.Open(t)
	config := singleMember(t)
	sidecar, hostPort := newSidecar(t, config)
	wrapper := start(t, "--backup-restore-host-port", hostPort)
	wrapper.await("/livez")

	tab.Run(chromedp.Navigate(wrapper.url()))
	shows(tab, "Query", "not ready")
	sidecar.say("New")
	shows(tab, "Wait", "not ready")
	tab.Has("#edge_Query_Trigger.visited .badge", "#edge_Trigger_Wait.visited", "#state_Wait.current[aria-current=step]")
	tab.Picture("run-wait")
	sidecar.say("Successful")
	shows(tab, "Serving", "ready")
	tab.Has("#checks li.ok:nth-child(5)", "#edge_StartEtcd_Serving.visited", "#state_StartEtcd.visited:not(.current)")
	tab.Picture("run-serving")

	require.Zero(t, wrapper.stop())
	shows(tab, "Terminated", "not ready")
	tab.Has("#edge_Serving_Terminating.visited", "body.lost")
	tab.Picture("run-terminated")
}

// shows waits for a state and for what the page says about readiness.
func shows(tab *chromium.Tab, state, ready string) {
	tab.Holds(`document.getElementById("state").textContent === %q && document.getElementById("ready").textContent === %q`, state, ready)
}
