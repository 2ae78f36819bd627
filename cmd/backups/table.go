package backups

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table returns rows of cells, each column as wide as its widest cell.
func table(rows ...[]string) string {
	var b strings.Builder
	aligned := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = io.WriteString(aligned, strings.Join(row, "\t")+"\n") // to memory, which cannot fail
	}
	_ = aligned.Flush()
	return b.String()
}

// count is a number of things, of which the word names one.
func count[N int | int64](number N, word string) string {
	if number == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", number, word)
}
