package endtoend_test

import (
	"testing"

	"github.com/chromedp/chromedp"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/readiness/page/chromiumtest"
)

func TestPage_wholeRun(t *testing.T) {
	t.Parallel()
	tab := chromiumtest.Open(t)
	p := harness.NewPod(t)
	p.Sidecar.Takes, p.Sidecar.Broken[harness.StatusPath] = harness.Forever, harness.Block
	run := p.Start()
	run.AwaitLive()

	tab.Run(chromedp.Navigate(run.URL("/")))
	awaitPage(tab, "Query", "not ready")
	p.Sidecar.ClearFaults()
	awaitPage(tab, "Wait", "not ready")
	tab.WaitForElements("#edge_Query_Trigger.visited .badge", "#edge_Trigger_Wait.visited", "#state_Wait.current[aria-current=step]")
	p.Sidecar.Finish()
	awaitPage(tab, "Serving", "ready")
	tab.WaitForElements("#checks li.ok:nth-child(5)", "#edge_StartEtcd_Serving.visited", "#state_StartEtcd.visited:not(.current)")

	run.Shutdown()
	if len(run.Log.FindText("open requests may be cut off")) > 0 {
		return // the process exited before the page had received the last events
	}
	awaitPage(tab, "Terminated", "not ready")
	tab.WaitForElements("#edge_Serving_Terminating.visited", "body.lost")
}

// awaitPage waits until the page shows the given state and readiness text.
func awaitPage(tab *chromiumtest.Tab, state, ready string) {
	tab.WaitFor(`document.getElementById("state").textContent === %q && document.getElementById("ready").textContent === %q`, state, ready)
}
