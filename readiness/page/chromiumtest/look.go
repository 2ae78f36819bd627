package chromiumtest

import (
	"bytes"
	"context"
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

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the page")

// Size is that of a window, in pixels.
type Size struct{ Width, Height int64 }

// The windows that the page is made for.
var (
	Desk  = Size{1280, 800}
	Wide  = Size{1440, 900}
	Phone = Size{390, 844}
)

// What a reader may prefer.
const (
	Light = "light"
	Dark  = "dark"
)

// Look gives the window a size and a preference, Light or Dark. There are no transitions, in which colours are neither
// the old nor the new ones.
func (b *Tab) Look(size Size, preference string) {
	b.t.Helper()
	b.Run(chromedp.EmulateViewport(size.Width, size.Height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: preference}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}))
}

// Picture keeps what the first screens of two desks and a phone show, light and dark, and the whole page of each, for people
// to look at, if the test was given a directory for that.
func (b *Tab) Picture(name string) {
	if *screenshots == "" {
		return
	}
	for _, size := range []Size{Desk, Phone} {
		for _, preference := range []string{Light, Dark} {
			b.Look(size, preference)
			b.keep(fmt.Sprintf("%s-%d-%s.png", name, size.Width, preference))
		}
	}
	b.Look(Desk, Light)
}

func (b *Tab) keep(name string) {
	b.t.Helper()
	b.Run(chromedp.ActionFunc(func(ctx context.Context) error {
		shot, err := page.CaptureScreenshot().WithCaptureBeyondViewport(true).Do(ctx)
		require.NoError(b.t, err)
		small, err := fewColours(shot)
		require.NoError(b.t, err)
		return os.WriteFile(filepath.Join(*screenshots, name), small, 0o644)
	}))
}

// fewColours keeps the 256 most frequent colours of a PNG: nobody sees the difference, and a third of the bytes is left.
func fewColours(shot []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	times := map[color.Color]int{}
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			times[full.At(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(times), func(a, b color.Color) int { return times[b] - times[a] })
	small := image.NewPaletted(full.Bounds(), frequent[:min(256, len(frequent))])
	draw.Draw(small, small.Rect, full, image.Point{}, draw.Src)
	var file bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&file, small)
	return file.Bytes(), err
}

// Faint are the texts that have less than the 4.5 to 1 that WCAG asks for (AA) with what is behind them.
func (b *Tab) Faint() (texts []string) {
	b.t.Helper()
	b.Do(faint, &texts)
	return texts
}

const faint = `(() => {
	const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
	const light = (colour) => numbers(colour).slice(0, 3).map((n) => n / 255)
		.map((n) => n <= .04045 ? n / 12.92 : ((n + .055) / 1.055) ** 2.4).reduce((sum, n, i) => sum + n * [.2126, .7152, .0722][i], 0);
	const ground = (at) => {
		for (; at; at = at.parentElement) {
			const rect = at.matches("g") && at.querySelector(":scope > rect");
			if (rect) return getComputedStyle(rect).fill;
			const colour = getComputedStyle(at).backgroundColor;
			if ((numbers(colour)[3] ?? 1) === 1) return colour;
		}
		return "rgb(255, 255, 255)";
	};
	const texts = [...document.querySelectorAll("body *")].filter((at) => at.checkVisibility() && !at.matches("script, style") &&
		[...at.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()));
	return texts.flatMap((at) => {
		const [a, b] = [light(getComputedStyle(at)[at.matches("text") ? "fill" : "color"]), light(ground(at))].sort((a, b) => b - a);
		const ratio = (a + .05) / (b + .05);
		return ratio < 4.5 ? [ratio.toFixed(2) + " " + at.textContent.trim().slice(0, 40)] : [];
	});
})()`
