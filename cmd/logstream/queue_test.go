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

// A shelf is a writer that blocks until open is closed.
type shelf struct {
	open  chan struct{}
	lines []string
}

func (s *shelf) Write(line []byte) (int, error) {
	<-s.open
	s.lines = append(s.lines, string(line))
	return len(line), nil
}

func TestNeverWait_oneWritePerLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{open: make(chan struct{})}
		close(s.open)
		log, flush := NeverWait(s)
		for i := range 3 {
			_, _ = io.WriteString(log, fmt.Sprint(i))
			synctest.Wait()
			assert.Len(t, s.lines, i+1, "without another line, or the end")
		}
		flush()
		assert.Equal(t, []string{"0", "1", "2"}, s.lines)
	})
}

func TestNeverWait_countsLostLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{open: make(chan struct{})}
		log, flush := NeverWait(s)
		for i := range 1 + queueSize + 10 {
			_, _ = io.WriteString(log, fmt.Sprint(i))
			if i == 0 {
				synctest.Wait() // wait until pass is writing the line
			}
		}
		flush() // gives up
		close(s.open)
		flush()
		logged := strings.Join(s.lines, "")
		assert.Contains(t, logged, `"lines":10`)
		assert.Contains(t, logged, fmt.Sprint(queueSize), "the oldest stay")
	})
}

// slowly is a writer that takes some time to write each line.
type slowly struct{ *shelf }

func (s slowly) Write(line []byte) (int, error) {
	time.Sleep(150 * time.Millisecond)
	return s.shelf.Write(line)
}

func TestNeverWait_slowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowly{&shelf{open: make(chan struct{})}}
		close(s.open)
		log, flush := NeverWait(s)
		for i := range 10 {
			_, _ = io.WriteString(log, fmt.Sprint(i))
		}
		flush()
		assert.Len(t, s.lines, 10, "the last lines have the reason for the end")
	})
}
