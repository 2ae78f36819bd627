package logstream

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A blockedWriter blocks each write until open is closed, and then stores the line.
type blockedWriter struct {
	open  chan struct{}
	lines []string
}

func (s *blockedWriter) Write(line []byte) (int, error) {
	<-s.open
	s.lines = append(s.lines, string(line))
	return len(line), nil
}

func TestNeverWait_oneWritePerLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &blockedWriter{open: make(chan struct{})}
		close(s.open)
		log, flush := NeverWait(s)
		for i := range 3 {
			_, _ = io.WriteString(log, fmt.Sprint(i))
			synctest.Wait()
			assert.Len(t, s.lines, i+1, "each line is written at once, without waiting for more lines or for flush")
		}
		flush()
		assert.Equal(t, []string{"0", "1", "2"}, s.lines)
	})
}

func TestNeverWait_countsLostLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &blockedWriter{open: make(chan struct{})}
		log, flush := NeverWait(s)
		for i := range 1 + queueSize + 10 {
			_, _ = io.WriteString(log, fmt.Sprint(i))
			if i == 0 {
				synctest.Wait() // wait until pass is writing the line
			}
		}
		flush() // times out, because the writer is blocked
		close(s.open)
		flush()
		logged := strings.Join(s.lines, "")
		assert.Contains(t, logged, `"lines":10`)
		assert.Contains(t, logged, fmt.Sprint(queueSize), "the newest lines are dropped, not the oldest")
	})
}

// slowWriter takes 150 ms to write each line.
type slowWriter struct{ *blockedWriter }

func (s slowWriter) Write(line []byte) (int, error) {
	time.Sleep(150 * time.Millisecond)
	return s.blockedWriter.Write(line)
}

func TestNeverWait_slowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowWriter{&blockedWriter{open: make(chan struct{})}}
		close(s.open)
		log, flush := NeverWait(s)
		for i := range 10 {
			_, _ = io.WriteString(log, fmt.Sprint(i))
		}
		flush()
		assert.Len(t, s.lines, 10, "flush waits for a slow writer, because the last lines contain the reason for the exit")
	})
}
