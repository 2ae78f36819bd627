package terminal

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWrappedBreaksAtBlanksAndIndents(t *testing.T) {
	text := strings.Repeat("word ", 14) + "2026-11-23 16:14:09 UTC, and more"
	assert.Equal(t, "name  "+strings.Repeat("word ", 13)+"word\n      2026-11-23 16:14:09 UTC, and more", Wrapped("name  ", text))
	assert.Equal(t, "name  a   b", Wrapped("name  ", "a   b"), "blanks within a line are kept")
}

func TestWrappedNeverBreaksAWord(t *testing.T) {
	path := "/" + strings.Repeat("x", 100)
	assert.Equal(t, "at  stored in\n    "+path+"\n    permanently", Wrapped("at  ", "stored in "+path+" permanently"))
	assert.Equal(t, "at  "+path, Wrapped("at  ", path))
	assert.Equal(t, strings.Repeat("x", 70)+"one two three", Wrapped(strings.Repeat("x", 70), "one two three"), "text is not wrapped after a wide lead")
}

func TestColoursHaveNoWidth(t *testing.T) {
	red := "\x1b[31m" + strings.Repeat("r", 40) + "\x1b[0m"
	assert.Equal(t, red+" "+strings.Repeat("s", 39), Wrapped("", red+" "+strings.Repeat("s", 39)))
	assert.Equal(t, red+"\n"+strings.Repeat("s", 40), Wrapped("", red+" "+strings.Repeat("s", 40)))
}

func TestTableAlignsColumns(t *testing.T) {
	assert.Equal(t, "a    b  c\n→→→  →  d\n", Table([]string{"a", "b", "c"}, []string{"→→→", "→", "d"}))
}
