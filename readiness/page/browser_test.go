package page_test

import (
	"bytes"
	"context"
	_ "embed" // for contrast.js
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/page/chromiumtest"
)

// A browser is a browser tab together with the test that uses it.
type browser struct {
	*chromiumtest.Tab
	t *testing.T
}

// newBrowser starts a browser with a desktop-sized window.
func newBrowser(t *testing.T) browser {
	t.Helper()
	b := browser{chromiumtest.Open(t), t}
	b.setWindow(desk, light)
	return b
}

// forTest returns the same tab for use in a subtest.
func (b browser) forTest(t *testing.T) browser { return browser{b.WithTest(t), t} }

// do runs a script and stores its value in result, unless result is nil.
func (b browser) do(script string, result any) {
	b.t.Helper()
	b.Run(chromedp.Evaluate(script, result))
}

// evaluate evaluates a condition once, without waiting.
func (b browser) evaluate(expression string, parts ...any) (yes bool) {
	b.t.Helper()
	b.do(fmt.Sprintf(expression, parts...), &yes)
	return yes
}

// waitForText waits until the element's text contains the given string.
func (b browser) waitForText(selector, text string) {
	b.t.Helper()
	b.WaitFor(`document.querySelector(%q)?.textContent.includes(%q)`, selector, text)
}

// text returns the text of an element.
func (b browser) text(selector string) (text string) {
	b.t.Helper()
	b.do(fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector), &text)
	return text
}

// tabTo presses Tab until all elements have received the focus in the given order.
func (b browser) tabTo(ids ...string) {
	b.t.Helper()
	for presses := 0; len(ids) > 0; presses++ {
		require.Less(b.t, presses, 40, "%s does not receive the focus", ids[0])
		b.Run(chromedp.KeyEvent("\t"))
		if b.evaluate(`document.activeElement.id === %q`, ids[0]) {
			ids = ids[1:]
		}
	}
}

var screenshots = flag.String("screenshots", "", "directory in which to save screenshots of the page")

// A size is a window size in pixels.
type size struct{ width, height int64 }

// Window sizes for which the page is designed.
var (
	desk  = size{1280, 800}
	wide  = size{1440, 900}
	phone = size{390, 844}
)

// Preferred color schemes.
const (
	light = "light"
	dark  = "dark"
)

// setWindow sets the window size and the color scheme. It disables animations, because colors change while they run.
func (b browser) setWindow(window size, preference string) {
	b.t.Helper()
	b.Run(chromedp.EmulateViewport(window.width, window.height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: preference}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}))
}

// screenshot saves images of the page at desktop and phone sizes, in both color schemes, if -screenshots is set.
func (b browser) screenshot(name string) {
	if *screenshots == "" {
		return
	}
	for _, window := range []size{desk, phone} {
		for _, preference := range []string{light, dark} {
			b.setWindow(window, preference)
			b.save(fmt.Sprintf("%s-%d-%s.png", name, window.width, preference))
		}
	}
	b.setWindow(desk, light)
}

func (b browser) save(name string) {
	b.t.Helper()
	b.Run(chromedp.ActionFunc(func(ctx context.Context) error {
		shot, err := page.CaptureScreenshot().WithCaptureBeyondViewport(true).Do(ctx)
		require.NoError(b.t, err)
		small, err := compress(shot)
		require.NoError(b.t, err)
		return os.WriteFile(filepath.Join(*screenshots, name), small, 0o644)
	}))
}

// compress reduces a PNG to its 256 most frequent colors, which cuts its size by two thirds with no visible
// difference.
func compress(shot []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	counts := map[color.Color]int{}
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			counts[full.At(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	small := image.NewPaletted(full.Bounds(), frequent[:min(256, len(frequent))])
	draw.Draw(small, small.Rect, full, image.Point{}, draw.Src)
	var file bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&file, small)
	return file.Bytes(), err
}

//go:embed testdata/contrast.js
var contrast string

// unreadableText returns all text with a contrast ratio below 4.5:1, the minimum for WCAG level AA.
func (b browser) unreadableText() (texts []string) {
	b.t.Helper()
	b.do(contrast, &texts)
	return texts
}
