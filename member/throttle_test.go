package member

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
		time.Sleep(30 * time.Second)
		log.Info("later")
		lines := linesOf(t, written)
		require.Len(t, lines, mostWarnings+3)
		counted := lines[mostWarnings+1]
		assert.Equal(t, "warn", counted["level"])
		assert.EqualValues(t, 93_221-mostWarnings, counted["times"])
		assert.EqualValues(t, 30_000, counted["in_ms"])
		assert.Equal(t, lines[0]["caller"], counted["caller"])
		assert.Contains(t, counted["message"], "more of this than is written: failed to publish local member")
		assert.Equal(t, "later", lines[mostWarnings+2]["message"])
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
			time.Sleep(firstCount / mostWarnings)
		}
		assert.Len(t, linesOf(t, written), 100)
	})
}

// Without a quorum etcd says twice a second that it waits.
func TestWhatLastsIsSaidLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := etcdsLog()
		told := func(lasts time.Duration) int {
			written.Reset()
			for range int(lasts / (500 * time.Millisecond)) {
				log.Warn("waiting for ReadIndex response took too long, retrying")
				time.Sleep(500 * time.Millisecond)
			}
			return len(linesOf(t, written))
		}
		assert.Equal(t, mostWarnings, told(30*time.Second))
		assert.Equal(t, 2*2, told(2*time.Minute), "after 30 s and 90 s the count and a line")
		told(time.Hour)
		assert.Equal(t, 2*12, told(time.Hour))

		time.Sleep(2 * lastCount)
		log.Info("time goes by")
		time.Sleep(2 * lastCount)
		assert.Equal(t, mostWarnings, told(20*time.Second), "it is new again")
	})
}

// Another peer, or another cause, is another kind; the numbers in a cause are not.
func TestLinesAboutDifferentThingsAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := etcdsLog()
		for _, cause := range []string{"read tcp 127.0.0.1:PORT: connection refused", "certificate has expired"} {
			for _, peer := range []string{"b8427a9848e55a7", "75fb7df1dacfc315"} {
				for port := range 100 {
					log.Warn("prober detected unhealthy status", zap.String("remote-peer-id", peer),
						zap.Error(errors.New(strings.Replace(cause, "PORT", strconv.Itoa(port), 1))))
				}
			}
		}
		assert.Len(t, linesOf(t, written), 4*mostWarnings)
	})
}

// What is no warning differs in its fields, as a rule.
func TestMoreIsSaidOfWhatIsNoWarning(t *testing.T) {
	log, written := etcdsLog()
	for range 100 {
		log.Info("added member")
	}
	assert.Len(t, linesOf(t, written), mostOfAKind)
}

func TestAClockThatGoesBackKeepsNothingBack(t *testing.T) {
	throttle := newThrottle()
	now := time.Now()
	for i := range 100 {
		write, _ := throttle.admit(zapcore.Entry{Message: "x", Time: now.Add(-time.Duration(i) * time.Hour)}, "")
		assert.True(t, write)
	}
}
