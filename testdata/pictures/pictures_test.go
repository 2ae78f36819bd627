// Package pictures draws docs/pictures/NAME.svg from docs/pictures/NAME.d2 for `make pictures`. It has its own module
// to keep D2 out of the program's dependencies.
package pictures

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"oss.terrastruct.com/d2/d2graph"
	"oss.terrastruct.com/d2/d2layouts/d2elklayout"
	"oss.terrastruct.com/d2/d2lib"
	"oss.terrastruct.com/d2/d2renderers/d2svg"
	"oss.terrastruct.com/d2/d2themes/d2themescatalog"
	"oss.terrastruct.com/d2/lib/log"
	"oss.terrastruct.com/d2/lib/textmeasure"
	"oss.terrastruct.com/util-go/go2"
)

var update = flag.Bool("update", false, "redraw the pictures")

const folder = "../../docs/pictures"

func TestPictures_matchTheirSources(t *testing.T) {
	texts, err := filepath.Glob(filepath.Join(folder, "*.d2"))
	require.NoError(t, err)
	require.NotEmpty(t, texts)
	for _, path := range texts {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		picture := strings.TrimSuffix(path, ".d2") + ".svg"
		drawn := draw(t, string(text))
		if *update {
			require.NoError(t, os.WriteFile(picture, drawn, 0o644))
		}
		committed, err := os.ReadFile(picture)
		require.NoError(t, err)
		assert.True(t, string(drawn) == string(committed), "%s is outdated: run make pictures", picture)
	}
}

// draw renders a D2 source in two versions: with light colors, and with dark colors for readers who prefer a dark
// theme.
func draw(t *testing.T, text string) []byte {
	t.Helper()
	ruler, err := textmeasure.NewRuler()
	require.NoError(t, err)
	style := &d2svg.RenderOpts{
		ThemeID:     &d2themescatalog.NeutralDefault.ID,
		DarkThemeID: &d2themescatalog.DarkMauve.ID,
		Pad:         go2.Pointer(int64(16)),
	}
	layout := func(string) (d2graph.LayoutGraph, error) { return d2elklayout.DefaultLayout, nil }
	ctx := log.WithDefault(context.Background())
	diagram, _, err := d2lib.Compile(ctx, text, &d2lib.CompileOptions{Ruler: ruler, LayoutResolver: layout}, style)
	require.NoError(t, err)
	svg, err := d2svg.Render(diagram, style)
	require.NoError(t, err)
	return fmt.Appendf(svg, "\n<!-- made by \"make pictures\" of %x -->\n", sha256.Sum256([]byte(text)))
}
