package member

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// newEtcdLog returns a logger for etcd and its output.
func newEtcdLog() (*zap.Logger, *bytes.Buffer) {
	var written bytes.Buffer
	m := &Member{options: Options{Log: zerolog.New(&written)}}
	return m.logger("info"), &written
}

func linesOf(t *testing.T, written *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	for line := range bytes.Lines(written.Bytes()) {
		var read map[string]any
		require.NoError(t, json.Unmarshal(line, &read))
		lines = append(lines, read)
	}
	return lines
}

func TestLogger_repeatedLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newEtcdLog()
		for range 93_221 {
			log.Warn("failed to publish local member to cluster through raft", zap.Error(errors.New("too many requests")))
		}
		require.Len(t, linesOf(t, written), maxEqualLines)
		log.Info("another")
		another := linesOf(t, written)[maxEqualLines]
		assert.EqualValues(t, 93_221-maxEqualLines, another["dropped_lines"])
		assert.NotEmpty(t, another["caller"])
		time.Sleep(sampleInterval)
		log.Warn("failed to publish local member to cluster through raft")
		lines := linesOf(t, written)
		require.Len(t, lines, maxEqualLines+2, "it is written again after a while")
		assert.Nil(t, lines[maxEqualLines+1]["dropped_lines"])
	})
}

func TestLogger_occasionalLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newEtcdLog()
		for range 100 {
			log.Warn("now and then")
			time.Sleep(sampleInterval / (maxEqualLines - 1))
		}
		assert.Len(t, linesOf(t, written), 100)
	})
}

// etcd silently ignores peers of another cluster, except for a line in its log.
func TestLogger_reasonForASlowStart(t *testing.T) {
	m := &Member{options: Options{Log: zerolog.Nop()}}
	log := m.logger("info")
	for range 2 * maxEqualLines {
		m.doing.Store("")
		log.Warn("request was ignored: cluster ID mismatch")
		assert.Contains(t, m.Doing(), "waiting for a peer that ignores this member (cluster ID mismatch)")
	}
}
