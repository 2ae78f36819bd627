package page_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the page")

// patience is for a busy machine.
const patience = 60 * time.Second

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
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(patience),
	}
	bounded, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	allocated, release := chromedp.NewExecAllocator(bounded, options...)
	t.Cleanup(release)
	tab, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	b := &browser{t: t, ctx: tab}
	chromedp.ListenTarget(tab, b.listen)
	b.run(log.Enable(), emulation.SetTimezoneOverride("Asia/Kolkata"), chromedp.EmulateViewport(1280, 800))
	b.scheme("light")
	t.Cleanup(func() { require.Empty(t, b.complaints(), "a clean console, so nothing breaks the policy") })
	return b
}

// profile is a folder for the browser. Its processes go on writing there for a moment after it was told to end.
func profile(t *testing.T) string {
	dir, err := os.MkdirTemp("", "etcd-wrapper-browser-")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, patience, 20*time.Millisecond)
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

// holds waits until an expression in the page is true.
func (b *browser) holds(expression string, parts ...any) {
	b.t.Helper()
	expression = fmt.Sprintf(expression, parts...)
	err := chromedp.Run(b.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(patience)))
	require.NoError(b.t, err, "%s\n%s", expression, b.text("body"))
}

// has waits for elements.
func (b *browser) has(selectors ...string) {
	b.t.Helper()
	for _, selector := range selectors {
		b.holds(`document.querySelector(%q) !== null`, selector)
	}
}

// shows waits until the text of an element contains another.
func (b *browser) shows(selector, text string) {
	b.t.Helper()
	b.holds(`document.querySelector(%q)?.textContent.includes(%q)`, selector, text)
}

// text is the text of an element.
func (b *browser) text(selector string) (text string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector), &text))
	return text
}

// is evaluates a condition once.
func (b *browser) is(expression string, parts ...any) (yes bool) {
	b.t.Helper()
	b.run(chromedp.Evaluate(fmt.Sprintf(expression, parts...), &yes))
	return yes
}

func (b *browser) press(keys string) {
	b.t.Helper()
	b.run(chromedp.KeyEvent(keys))
}

// scheme asks for light or dark, and for no transitions, in which colours are neither the old nor the new ones.
func (b *browser) scheme(name string) {
	b.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}
	b.run(emulation.SetEmulatedMedia().WithFeatures(features))
}

// picture keeps what the first screens of a desk and a phone show, light and dark, and the whole page of each.
func (b *browser) picture(name string) {
	if *screenshots == "" {
		return
	}
	for _, size := range [][2]int64{{1280, 800}, {390, 844}} {
		for _, scheme := range []string{"light", "dark"} {
			b.scheme(scheme)
			b.run(chromedp.EmulateViewport(size[0], size[1]))
			b.keep(fmt.Sprintf("%s-%d-%s.png", name, size[0], scheme), false)
			b.keep(fmt.Sprintf("%s-%d-%s-whole.png", name, size[0], scheme), true)
		}
	}
	b.run(chromedp.EmulateViewport(1280, 800))
}

func (b *browser) keep(name string, whole bool) {
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		png, err := cdppage.CaptureScreenshot().WithCaptureBeyondViewport(whole).Do(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(*screenshots, name), png, 0o600)
	}))
}
