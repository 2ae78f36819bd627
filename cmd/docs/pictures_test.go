package docs

import (
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/statemachine/statemachinetest"
)

const (
	pictureFolder = "../../docs/pictures"
	maxPicture    = 64 << 10 // maximum size of a picture in bytes
)

// readPicture reads a file from the picture directory.
func readPicture(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(pictureFolder, name))
	require.NoError(t, err)
	return string(content)
}

func TestPictures_sizeAndColorSchemes(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(pictureFolder, "*.svg"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	text := Text(t)
	for _, path := range found {
		name := filepath.Base(path)
		svg := readPicture(t, name)
		assert.Less(t, len(svg), maxPicture, name)
		assert.Contains(t, svg, "prefers-color-scheme", "%s must have colors for dark mode", name)
		assert.NotContains(t, svg, "href=", "%s must not contain links", name)
		assert.Regexp(t, `!\[[^\]]{20,}\]\((docs/)?pictures/`+name+`\)`, text, "a page must show %s, with a description as the alternative text", name)
		assert.NoError(t, xml.Unmarshal([]byte(svg), new(any)), name)
	}
}

// Each picture must contain the hash of its source, which shows that it was drawn after the last change. The pictures
// cannot be compared with new ones here, because D2 is not available: the module that draws the pictures does that.
func TestPictures_nameTheirSource(t *testing.T) {
	texts, err := filepath.Glob(filepath.Join(pictureFolder, "*.d2"))
	require.NoError(t, err)
	require.NotEmpty(t, texts)
	for _, path := range texts {
		name := strings.TrimSuffix(filepath.Base(path), ".d2")
		comment := fmt.Sprintf(`<!-- made by "make pictures" of %x -->`, sha256.Sum256([]byte(readPicture(t, name+".d2"))))
		assert.Contains(t, readPicture(t, name+".svg"), comment, `%s.svg is older than its source; run "make pictures"`, name)
	}
}

var (
	// label matches quoted text in the source of a picture.
	label = regexp.MustCompile(`"([^"]*)"`)
	// names matches the names of things that must exist in the program: flags, files, endpoints, ports and states.
	names = regexp.MustCompile(`--[a-z][a-z-]+|\b[a-z_-]+\.(?:json|etcd|spool)\b|\bexit_code\b|/[a-z]{5,}\b|:\d{4}\b|\b(?:[A-Z][a-z]+){1,2}$`)
)

func TestPictures_nameExistingThings(t *testing.T) {
	program, checked := sources(t), 0
	texts, err := filepath.Glob(filepath.Join(pictureFolder, "*.d2"))
	require.NoError(t, err)
	for _, path := range texts {
		for _, match := range label.FindAllStringSubmatch(readPicture(t, filepath.Base(path)), -1) {
			for line := range strings.SplitSeq(match[1], `\n`) {
				for _, name := range names.FindAllString(line, -1) {
					checked++
					assert.True(t, strings.Contains(program, strings.TrimLeft(name, ":")), "%s shows %s, which the program does not contain", filepath.Base(path), name)
				}
			}
		}
	}
	assert.Greater(t, checked, 25)
}

// sources returns the program's source code without tests.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	top := root(t)
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && path != top && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	require.NoError(t, err)
	return all.String()
}

// Pictures must use GitHub's colors for text and links, in light and dark mode.
const colors = `text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 } .other { fill: #8c959f } .ours { fill: #0969da }
.axis { stroke: #8c959f } .paper { fill: #f6f8fa } .typed { font-weight: 600 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .other { fill: #6e7681 } .ours { fill: #58a6ff } .axis { stroke: #6e7681 } .paper { fill: #161b22 } }
`

// The recording must show the input and output line by line, or all at once if the reader prefers reduced motion.
func TestRecording_matchesTheOutput(t *testing.T) {
	const lineHeight, margin, perCommand, perLine = 20, 16, 1.2, 0.15
	lines := strings.Split(strings.TrimSpace(readPicture(t, "recording.txt")), "\n")
	var b strings.Builder
	height := len(lines)*lineHeight + 2*margin
	fmt.Fprintf(&b, `<svg viewBox="0 0 720 %d" xmlns="http://www.w3.org/2000/svg">`+"\n<style>\n%s", height, colors)
	b.WriteString("text { font: 13px ui-monospace, monospace; white-space: pre } g { animation: later step-end }\n" +
		"@keyframes later { from, to { visibility: hidden } }\n@media (prefers-reduced-motion) { g { animation: none } }\n</style>\n")
	fmt.Fprintf(&b, `<rect class="paper" width="720" height="%d" rx="8"/>`+"\n", height)
	at := 0.0
	for i, line := range lines {
		class := "said"
		if at += perLine; strings.HasPrefix(line, "$ ") {
			class = "typed"
			at += perCommand
		}
		fmt.Fprintf(&b, `<g style="animation-duration:%.2fs"><text class="%s" x="%d" y="%d">%s</text></g>`+"\n",
			at, class, margin, margin+(i+1)*lineHeight-6, html.EscapeString(line))
	}
	b.WriteString("</svg>\n")
	statemachinetest.AssertGenerated(t, filepath.Join(pictureFolder, "recording.svg"), b.String())
}

// A bar is drawn from a table row in docs/benchmarks.md. The field row contains the first words of that row.
type bar struct{ row, label string }

// charts lists the charts that are drawn from rows of docs/benchmarks.md. If pair is set, a chart shows both medians
// of each row; otherwise, it shows their ratio.
var charts = []struct {
	file, unit string
	pair       bool
	bars       []bar
}{
	{"chart-waits", "ms that clients wait, or a stop takes; less is better", true, []bar{
		{"SIGTERM → exit, 1000 watches without TLS, ms", "stop with 1,000 watches"},
		{"rolling restart of three members: longest write gap of 16 clients, ms", "rolling restart of three"},
		{"three `MoveLeader` requests: longest write gap of 16 clients, ms", "leadership moved three times"},
		{"defragmentation of three members with 200 MB in use", "defragmentation of three"},
	}},
	{"chart-starts", "ms until etcd is ready, or serves again; less is better", true, []bar{
		{"start → ready, with a sidecar, ms", "start with a sidecar"},
		{"start → ready, without a sidecar, ms", "start without a sidecar"},
		{"restart of a single member: longest write gap of 16 clients", "write gap of a restart"},
		{"three stopped members start together → all ready, ms", "three start together"},
		{"start → ready, database of 0.1 GB, ms", "start, database of 0.1 GB"},
	}},
	{"chart-costs", "wrapper ÷ plain etcd, or with backups ÷ without; 1 is the same", false, []bar{
		{"puts per second, 100 clients", "puts per second (more is better)"},
		{"linearizable gets per second, 100 clients", "gets per second (more is better)"},
		{"1 KB puts per second: without and with backups", "puts with backups (more is better)"},
		{"1 KB puts at 1,000 per second, without and with backups: median, ms", "latency of a put with backups"},
		{"1 KB puts at 1,000 per second, without and with backups: CPU time, µs", "CPU time of a put with backups"},
		{"idle RSS, MiB", "memory, idle"},
		{"binary, MB", "binary"},
	}},
}

func TestCharts_matchTheBenchmarks(t *testing.T) {
	rows := measured(t)
	for _, chart := range charts {
		var most float64
		for _, bar := range chart.bars {
			row := rowOf(t, rows, bar.row)
			if chart.pair {
				most = max(most, number(t, row[1]), number(t, row[2]))
			} else {
				most = max(most, number(t, row[3]))
			}
		}
		const left, width, thick = 260, 390, 14
		height, step := 40, 26
		if chart.pair {
			step = 44
		}
		var b strings.Builder
		fmt.Fprintf(&b, `<svg viewBox="0 0 720 %d" xmlns="http://www.w3.org/2000/svg">`+"\n<style>\n%s</style>\n", height+len(chart.bars)*step+8, colors)
		fmt.Fprintf(&b, `<text x="8" y="20" class="typed">%s</text>`+"\n", html.EscapeString(chart.unit))
		one := func(class string, y int, value float64) {
			length := int(value / most * width)
			fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%d" height="%d"/><text x="%d" y="%d">%s</text>`+"\n",
				class, left, y, max(1, length), thick, left+max(1, length)+6, y+thick-2, strconv.FormatFloat(value, 'g', -1, 64))
		}
		for i, bar := range chart.bars {
			row, y := rowOf(t, rows, bar.row), height+i*step
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-10, y+step/2, html.EscapeString(bar.label))
			if chart.pair {
				one("other", y, number(t, row[1]))
				one("ours", y+thick+2, number(t, row[2]))
			} else {
				one("ours", y, number(t, row[3]))
			}
		}
		if chart.pair {
			fmt.Fprintf(&b, `<rect class="other" x="500" y="10" width="12" height="12"/><text x="518" y="20">plain etcd</text>`+
				`<rect class="ours" x="600" y="10" width="12" height="12"/><text x="618" y="20">wrapper</text>`+"\n")
		} else {
			x := left + int(width/most)
			fmt.Fprintf(&b, `<line class="axis" x1="%d" x2="%d" y1="32" y2="%d"/>`+"\n", x, x, height+len(chart.bars)*step)
		}
		b.WriteString("</svg>\n")
		statemachinetest.AssertGenerated(t, filepath.Join(pictureFolder, chart.file+".svg"), b.String())
	}
}

func TestReadmeFigures_matchTheBenchmarks(t *testing.T) {
	rows, readme := measured(t), pages(t)["README.md"]
	for _, figure := range []struct {
		text, row string
		column    int
		unit      float64
	}{
		{"**Ready in %.0f ms.**", "start → ready, with a sidecar, ms", 2, 1},
		{"Plain etcd takes %.0f ms", "start → ready, with a sidecar, ms", 1, 1},
		{"**Stops in %.0f ms**", "SIGTERM → exit, 1000 watches without TLS, ms", 2, 1},
		{"Plain etcd takes %.0f s", "SIGTERM → exit, 1000 watches without TLS, ms", 1, 1000},
		{"within %.2f s", "put acknowledged → in the store, under the same load, p99, ms", 2, 1000},
	} {
		assert.Contains(t, readme, fmt.Sprintf(figure.text, number(t, rowOf(t, rows, figure.row)[figure.column])/figure.unit))
	}
}

// measured returns the rows of docs/benchmarks.md that contain measurements.
func measured(t *testing.T) (rows []Row) {
	t.Helper()
	for line := range strings.Lines(pages(t)["docs/benchmarks.md"]) {
		if row, ok := cells(line); ok && len(row) == 6 {
			rows = append(rows, row)
		}
	}
	require.Greater(t, len(rows), 40)
	return rows
}

func rowOf(t *testing.T, rows []Row, prefix string) Row {
	t.Helper()
	for _, row := range rows {
		if strings.HasPrefix(row[0], prefix) {
			return row
		}
	}
	require.Fail(t, "docs/benchmarks.md has no row that starts with "+prefix)
	return nil
}

// number parses the median in a table cell.
func number(t *testing.T, cell string) float64 {
	t.Helper()
	first, _, _ := strings.Cut(cell, " ")
	value, err := strconv.ParseFloat(first, 64)
	require.NoError(t, err)
	return value
}
