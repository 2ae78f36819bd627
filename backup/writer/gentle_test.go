package writer

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheCopyIsReadInHalfOfTheTime(t *testing.T) {
	for name, c := range map[string]struct{ work, total time.Duration }{
		"compression":    {work: 4 * time.Millisecond, total: 4*4*time.Millisecond + 3*4*time.Millisecond},
		"a slow network": {work: time.Second, total: 4*time.Second + 3*longestRest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				reader := &gentle{Reader: strings.NewReader(strings.Repeat("x", 4*gentlePiece))}
				piece := make([]byte, gentlePiece)
				for range 4 {
					_, err := io.ReadFull(reader, piece)
					require.NoError(t, err)
					time.Sleep(c.work)
				}
				assert.Equal(t, c.total, time.Since(begun))
			})
		})
	}
}
