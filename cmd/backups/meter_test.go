package backups

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheMeterShowsRateAndTimeLeftInOneLine(t *testing.T) {
	var shown bytes.Buffer
	now := time.Unix(0, 0)
	meter := &Meter{to: &shown, now: func() time.Time { return now }}
	meter.Show("fetched", 0, 100<<20)
	now = now.Add(redraw / 2)
	meter.Show("fetched", 1<<20, 100<<20)
	now = now.Add(2*time.Second - redraw/2)
	meter.Show("fetched", 20<<20, 100<<20)
	meter.Clear()
	assert.Equal(t, "\r\x1b[Kfetched: 0 bytes of 100.0 MiB\r\x1b[Kfetched: 20.0 MiB of 100.0 MiB, 10.0 MiB/s, 8s left\r\x1b[K", shown.String())
}

func TestTheMeterOfAnUnknownLengthHasNoTimeLeft(t *testing.T) {
	var shown bytes.Buffer
	now := time.Unix(0, 0)
	meter := &Meter{to: &shown, now: func() time.Time { return now }}
	meter.Show("uploaded", 0, 0)
	now = now.Add(4 * time.Second)
	meter.Show("uploaded", 2<<30, 0)
	assert.Contains(t, shown.String(), "uploaded: 2.0 GiB, 512.0 MiB/s")
	assert.NotContains(t, shown.String(), "left")
}

func TestWhereNobodySeesItNothingIsShown(*testing.T) {
	meter := NewMeter(nil)
	meter.Show("fetched", 1, 2)
	meter.Clear()
}
