// Package chromiumtest opens the page in a browser for tests. Only tests import it.
package chromiumtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Timeout limits how long a test waits for the browser. It is generous because the browser is slow on a busy machine.
const Timeout = 60 * time.Second

// A Tab is a browser tab.
type Tab struct {
	t       *testing.T
	ctx     context.Context //nolint:containedctx // chromedp identifies a tab by its context
	console *console
}

// console collects the errors and warnings in the browser console.
type console struct {
	mu       sync.Mutex
	messages []string
}

// Open starts a browser that runs until the test ends. If no browser is installed, Open skips the test. The test
// fails if there are errors or warnings in the browser console.
func Open(t *testing.T) *Tab {
	path := findChromium()
	if path == "" {
		t.Skip("CHROMIUM NOT FOUND: skipping " + t.Name() + ", so the page is not tested")
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(profile(t)), chromedp.Headless, chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(Timeout),
	}
	bounded, cancel := context.WithTimeout(context.Background(), 30*Timeout) // many subtests share a tab
	t.Cleanup(cancel)
	allocated, release := chromedp.NewExecAllocator(bounded, options...)
	t.Cleanup(release)
	ctx, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	b := &Tab{t: t, ctx: ctx, console: &console{}}
	chromedp.ListenTarget(ctx, b.console.listen)
	b.Run(log.Enable())
	t.Cleanup(func() { require.Empty(t, b.console.list(), "the browser console must be empty") })
	return b
}

// profile returns a directory for the browser's profile. Its removal is retried, because the browser's child
// processes may briefly keep writing to it after the browser has exited.
func profile(t *testing.T) string {
	dir, err := os.MkdirTemp("", "etcd-wrapper-browser-")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, Timeout, 20*time.Millisecond)
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

// listen collects the errors and warnings in the browser console. Network errors are ignored, because tests stop
// their servers.
func (c *console) listen(event any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		c.messages = append(c.messages, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Source != log.SourceNetwork {
			c.messages = append(c.messages, e.Entry.Text)
		}
	}
}

func (c *console) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.messages
}

// WithTest returns the same tab for use in a subtest.
func (b *Tab) WithTest(t *testing.T) *Tab { return &Tab{t: t, ctx: b.ctx, console: b.console} }

// Run performs actions in the browser.
func (b *Tab) Run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

// WaitFor waits until a JavaScript condition is true. The page may still be loading when WaitFor is called.
func (b *Tab) WaitFor(expression string, parts ...any) {
	b.t.Helper()
	expression = fmt.Sprintf(expression, parts...)
	isTrue := func() (yes bool) {
		return chromedp.Run(b.ctx, chromedp.Evaluate(expression, &yes)) == nil && yes
	}
	if !assert.Eventually(b.t, isTrue, Timeout, 20*time.Millisecond) {
		var shown string
		b.Run(chromedp.Evaluate(`document.body.innerText`, &shown))
		require.Fail(b.t, "the condition did not become true", "%s\ntext of the page: %s", expression, strings.Join(strings.Fields(shown), " "))
	}
}

// WaitForElements waits until the page contains an element for each selector.
func (b *Tab) WaitForElements(selectors ...string) {
	b.t.Helper()
	for _, selector := range selectors {
		b.WaitFor(`document.querySelector(%q) !== null`, selector)
	}
}
