package member

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcdsLog is a log as etcd writes to it, and what comes of that.
func etcdsLog() (*zap.Logger, *bytes.Buffer) {
	var written bytes.Buffer
	m := &Member{options: Options{Log: zerolog.New(&written)}}
	return m.logger("info"), &written
}

func linesOf(t *testing.T, written *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	for _, line := range bytes.Split(bytes.TrimSpace(written.Bytes()), []byte("\n")) {
		var read map[string]any
		require.NoError(t, json.Unmarshal(line, &read))
		lines = append(lines, read)
	}
	return lines
}

func TestALineThatComesWithoutAPauseIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := etcdsLog()
		for range 93_221 {
			log.Warn("failed to publish local member to cluster through raft", zap.Error(errors.New("too many requests")))
		}
		log.Info("another")
		time.Sleep(1500 * time.Millisecond)
		log.Info("later")
		lines := linesOf(t, written)
		require.Len(t, lines, mostOfAKind+3)
		counted := lines[mostOfAKind+1]
		assert.Equal(t, "warn", counted["level"])
		assert.EqualValues(t, 93_221-mostOfAKind, counted["times"])
		assert.EqualValues(t, 1500, counted["in_ms"])
		assert.Equal(t, lines[0]["caller"], counted["caller"])
		assert.Contains(t, counted["message"], "more of this than is written: failed to publish local member")
		assert.Equal(t, "later", lines[mostOfAKind+2]["message"])
	})
}

// What etcd says is bounded in all, whatever it says.
func TestThereAreOnlySoManyLinesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := etcdsLog()
		for second := range 60 {
			for i := range 10_000 {
				log.Error(fmt.Sprintf("kind %d of second %d", i%1000, second))
			}
			time.Sleep(time.Second)
		}
		assert.Less(t, written.Len(), 5<<20, "bytes a minute")
		firsts := 0
		for _, line := range linesOf(t, written) {
			if line["times"] == nil {
				firsts++
			}
		}
		assert.Equal(t, 60*mostLines, firsts)
	})
}

func TestWhatComesNowAndThenIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := etcdsLog()
		for range 100 {
			log.Warn("now and then")
			time.Sleep(200 * time.Millisecond)
		}
		assert.Len(t, linesOf(t, written), 100)
	})
}

func TestAClockThatGoesBackKeepsNothingBack(t *testing.T) {
	throttle := newThrottle()
	now := time.Now()
	for i := range 100 {
		write, _ := throttle.admit(zapcore.Entry{Message: "x", Time: now.Add(-time.Duration(i) * time.Hour)})
		assert.True(t, write)
	}
}
