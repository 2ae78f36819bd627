package runtime

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mapped returns how many KiB of the executable are resident in this process.
func mapped(t *testing.T) (total int) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	own := false
	for line := range strings.Lines(string(maps)) {
		var size int
		switch fields := strings.Fields(line); {
		case strings.Contains(fields[0], "-"):
			own = len(fields) == 6 && fields[5] == program && !strings.Contains(fields[1], "w")
		case own && fields[0] == "Rss:":
			_, err := fmt.Sscan(fields[1], &size)
			require.NoError(t, err)
			total += size
		}
	}
	return total
}

func TestReleaseStartup(t *testing.T) {
	memory, err := os.Open("/proc/self/mem")
	require.NoError(t, err)
	defer memory.Close()
	code := int64(reflect.ValueOf(releaseStartup).Pointer())
	// Reading the program's code maps its pages into memory.
	_, err = io.Copy(io.Discard, io.NewSectionReader(memory, code, 8<<20))
	require.NoError(t, err)
	before := mapped(t)
	require.Greater(t, before, 8<<10)
	releaseStartup()
	assert.Less(t, mapped(t), before/2)
}
