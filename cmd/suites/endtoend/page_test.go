package endtoend_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the page")

// The whole life of a member, seen through the page.
func TestThePageShowsARunFromQueryToTerminated(t *testing.T) {
	t.Parallel()
	browser := openBrowser(t)
	p := harness.NewPod(t)
	p.Sidecar.Takes, p.Sidecar.Broken[harness.StatusPath] = harness.Forever, harness.Hang
	run := p.Start()
	run.AwaitAnswer()

	browser.run(chromedp.Navigate(run.URL("/")))
	browser.shows("Query", "not ready")
	p.Sidecar.Heal()
	browser.shows("Wait", "not ready")
	browser.has("#edge_Query_Trigger.visited .badge", "#edge_Trigger_Wait.visited", "#state_Wait.current[aria-current=step]")
	browser.picture("wait")
	p.Sidecar.Conclude()
	browser.shows("Serving", "ready")
	browser.has("#checks li.ok:nth-child(5)", "#edge_StartEtcd_Serving.visited", "#state_StartEtcd.visited:not(.current)")
	browser.picture("serving")
	browser.reachesByKeyboard("timeline", "diagram", "state_Query")

	run.StopCleanly()
	browser.shows("Terminated", "not ready")
	browser.has("#edge_Serving_Terminating.visited", "#link.lost")
	browser.picture("terminated")
	require.Empty(t, browser.complaints(), "a clean console, so nothing breaks the policy")
}

// browser is a real Chromium with one tab.
type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp hands a tab out this way

	mu    sync.Mutex
	heard []string
}

func openBrowser(t *testing.T) *browser {
	path := findChromium()
	if path == "" {
		t.Skip("NO CHROMIUM FOUND: " + t.Name() + " did not run, the page was not tested")
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(profile(t)), chromedp.Headless, chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true),
	}
	bounded, cancel := context.WithTimeout(context.Background(), 2*harness.Patience)
	t.Cleanup(cancel)
	allocated, release := chromedp.NewExecAllocator(bounded, options...)
	t.Cleanup(release)
	tab, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	b := &browser{t: t, ctx: tab}
	chromedp.ListenTarget(tab, b.listen)
	b.run(log.Enable(), chromedp.EmulateViewport(1280, 900))
	return b
}

// profile is a folder for the browser. Its processes go on writing there for a moment after it was told to end.
func profile(t *testing.T) string {
	dir, err := os.MkdirTemp("", "etcd-wrapper-browser-")
	require.NoError(t, err)
	t.Cleanup(func() {
		harness.Eventually(t, "the browser is gone", func() bool { return os.RemoveAll(dir) == nil })
	})
	return dir
}

func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

// listen collects what the browser complains about; that a server which has ended refuses connections is none.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.heard = append(b.heard, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Source != log.SourceNetwork {
			b.heard = append(b.heard, e.Entry.Text)
		}
	}
}

func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard
}

// shows waits for a state and for what the page says about readiness.
func (b *browser) shows(state, ready string) {
	b.t.Helper()
	said := fmt.Sprintf(`document.getElementById("state").textContent === %q && document.getElementById("ready").textContent === %q`, state, ready)
	b.run(chromedp.Poll(said, nil, chromedp.WithPollingTimeout(harness.Patience)))
}

func (b *browser) has(selectors ...string) {
	b.t.Helper()
	for _, selector := range selectors {
		b.run(chromedp.Poll(fmt.Sprintf(`document.querySelector(%q) !== null`, selector), nil, chromedp.WithPollingTimeout(harness.Patience)))
	}
}

// reachesByKeyboard presses the tabulator until each of the elements had the focus, in that order.
func (b *browser) reachesByKeyboard(ids ...string) {
	b.t.Helper()
	for presses := 0; len(ids) > 0; presses++ {
		require.Less(b.t, presses, 20, "%s is not reached", ids[0])
		var focused string
		b.run(chromedp.KeyEvent("\t"), chromedp.Evaluate(`document.activeElement.id`, &focused))
		if focused == ids[0] {
			ids = ids[1:]
		}
	}
}

// picture keeps what a wide and a narrow window show, light and dark, for people to look at.
func (b *browser) picture(name string) {
	if *screenshots == "" {
		return
	}
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			var png []byte
			colours := emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}})
			b.run(colours, chromedp.EmulateViewport(width, 900), chromedp.FullScreenshot(&png, 90))
			path := filepath.Join(*screenshots, fmt.Sprintf("%s-%d-%s.jpg", name, width, scheme))
			require.NoError(b.t, os.WriteFile(path, png, 0o600))
		}
	}
	b.run(chromedp.EmulateViewport(1280, 900))
}
