package chromiumtest

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

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the page")

// Size is the size of a window in pixels.
type Size struct{ Width, Height int64 }

// The windows that the page is made for.
var (
	Desk  = Size{1280, 800}
	Wide  = Size{1440, 900}
	Phone = Size{390, 844}
)

// The preferred colour schemes.
const (
	Light = "light"
	Dark  = "dark"
)

// Show sets the window's size and preference, Light or Dark, and turns animations off: during them colours are neither
// the old nor the new ones.
func (b *Tab) Show(size Size, preference string) {
	b.t.Helper()
	b.Run(chromedp.EmulateViewport(size.Width, size.Height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: preference}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}))
}

// Screenshot saves the whole page on a desk and a phone, light and dark, if the flag -screenshots names a directory.
func (b *Tab) Screenshot(name string) {
	if *screenshots == "" {
		return
	}
	for _, size := range []Size{Desk, Phone} {
		for _, preference := range []string{Light, Dark} {
			b.Show(size, preference)
			b.save(fmt.Sprintf("%s-%d-%s.png", name, size.Width, preference))
		}
	}
	b.Show(Desk, Light)
}

func (b *Tab) save(name string) {
	b.t.Helper()
	b.Run(chromedp.ActionFunc(func(ctx context.Context) error {
		shot, err := page.CaptureScreenshot().WithCaptureBeyondViewport(true).Do(ctx)
		require.NoError(b.t, err)
		small, err := compress(shot)
		require.NoError(b.t, err)
		return os.WriteFile(filepath.Join(*screenshots, name), small, 0o644)
	}))
}

// compress reduces a PNG to its 256 most frequent colours, which saves two thirds of the bytes without a visible difference.
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

//go:embed contrast.js
var contrast string

// UnreadableText returns the texts with a contrast of less than 4.5 to 1, which WCAG requires (AA).
func (b *Tab) UnreadableText() (texts []string) {
	b.t.Helper()
	b.Do(contrast, &texts)
	return texts
}
