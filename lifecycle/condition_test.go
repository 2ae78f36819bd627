package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/cmd/docs"
	. "etcd-wrapper/lifecycle"
)

// A condition must end with the first success after the failures, even if the validation then takes hours.
func TestCondition_endsWithFirstSuccess(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*stage)
		last  bootstrap.InitializationStatus // last status, which follows several New statuses
	}{
		"the status query fails":                                          {func(s *stage) { s.status = failing(3) }, bootstrap.Successful},
		"the status query fails, and the validation takes long":           {func(s *stage) { s.status = failing(3) }, bootstrap.Progress},
		"the initialization request fails":                                {func(s *stage) { s.trigger = failing(3) }, bootstrap.Successful},
		"the initialization request fails, and the validation takes long": {func(s *stage) { s.trigger = failing(3) }, bootstrap.Progress},
		"fetching the configuration fails": {func(s *stage) {
			s.config, s.statuses = failing(3+1), s.statuses[3:] // the first call is the prefetch
		}, bootstrap.Successful},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := loggedStage(append(slices.Repeat([]bootstrap.InitializationStatus{bootstrap.New}, 4), test.last)...)
				test.spoil(s)
				s.start(t, time.Minute)
				synctest.Wait() // wait for the log lines
				condition := s.driver.Snapshot().Condition
				assert.Equal(t, 3, condition.Times)
				assert.True(t, condition.Since.Before(condition.At))
				assert.False(t, condition.Ended.Before(condition.At), "the condition has not ended: %+v", condition)
				assert.Len(t, log.linesWith(t, "recovered: "), 1)
			})
		})
	}
}

func TestCondition_isShownDuringRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.status = func(context.Context) error { time.Sleep(time.Minute); return errStage }
		wait := s.run(t)
		pass(90 * time.Second)
		now := s.driver.Snapshot()
		assert.Equal(t, Query, now.State)
		assert.Contains(t, now.Reason, "no usable response from the sidecar")
		s.sigterm()
		wait()
		pass(time.Minute) // wait for abandoned calls
	})
}

func TestHints_belongToRows(t *testing.T) {
	assert.Empty(t, UnusedHints(Table), "hints (condition.go) without a row")
}

func TestMessages_areDocumented(t *testing.T) {
	messages := Messages()
	explained := listed[string](t, "These messages are informational: ")
	for _, row := range docs.Table(t, "message", "meaning", "what to do") {
		explained = append(explained, strings.Trim(row[0], "`"))
		assert.NotEmpty(t, row[1], "%s has no meaning", row[0])
		assert.NotEmpty(t, row[2], "%s has no instructions", row[0])
	}
	for _, message := range messages {
		assert.True(t, slices.Contains(explained, message), "explain it in docs/troubleshooting.md, in the table or in the list of informational messages: %s", message)
	}
	for _, message := range explained {
		assert.True(t, slices.Contains(messages, message), "docs/troubleshooting.md explains a message that does not exist: %s", message)
	}
}

// logged collects the log lines of a run.
type logged struct {
	bytes.Buffer
}

// linesWith returns the lines with a message that contains the text.
func (l *logged) linesWith(t *testing.T, text string) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		var parsed map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &parsed))
		if message, _ := parsed["message"].(string); strings.Contains(message, text) {
			lines = append(lines, parsed)
		}
	}
	return lines
}

// loggedStage returns a stage that logs at the info level.
func loggedStage(statuses ...bootstrap.InitializationStatus) (*stage, *logged) {
	s, log := newStage(statuses...), &logged{}
	s.driver = NewDriver(Options{Runtime: s.runtime(), Log: zerolog.New(log).Level(zerolog.InfoLevel)})
	return s, log
}

func TestFailedInitialization_showsCause(t *testing.T) {
	missing := fmt.Errorf("peer-transport-security.cert-file: cannot load file %q: %w", "/tls/tls.crt",
		bootstrap.Mark(errors.New("no such file or directory"), bootstrap.ErrCertificates))
	for _, test := range []struct {
		cause      error
		class      Class
		text, next string
	}{
		{errors.New("db is corrupt"), ClassValidation, "the initialization failed: db is corrupt", "; no data was changed"},
		{missing, ClassCertificate, "the etcd configuration is not usable yet: " + missing.Error(), "; fix the file named in the error"},
	} {
		t.Run(string(test.class), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := loggedStage(bootstrap.Failed, bootstrap.New, bootstrap.Progress)
				s.cause = test.cause
				s.start(t, time.Minute)
				assert.NotEmpty(t, log.linesWith(t, test.text+test.next))
				now := s.driver.Snapshot()
				assert.Equal(t, test.class, now.Condition.Class)
				assert.Equal(t, test.text, now.Condition.Text)
				assert.Zero(t, now.Condition.Ended, "a retry does not end the condition")
				s.succeed()
				pass(time.Minute)
				assert.NotZero(t, s.driver.Snapshot().Condition.Ended)
			})
		})
	}
}

func TestSignalDuringStop_keepsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.shut = func() error { time.Sleep(2 * time.Second); return nil }
		wait := s.run(t)
		pass(time.Minute)
		s.driver.Stop()
		pass(time.Second)
		s.sigterm()
		pass(time.Second / 2)
		assert.Equal(t, "stop requested by POST /stop", s.driver.Snapshot().Reason)
		wait()
	})
}

func TestVolumeLockFailure_mentionsOtherProcessOnlyIfBusy(t *testing.T) {
	for _, test := range []struct {
		err    error
		blames bool
	}{{fmt.Errorf("cannot lock volume /data: %w", bootstrap.ErrVolumeBusy), true}, {fs.ErrPermission, false}} {
		t.Run(test.err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				s.lock = func() error { return test.err }
				s.start(t, time.Minute)
				reason := s.driver.Snapshot().Reason
				assert.Contains(t, reason, "cannot lock the volume: "+test.err.Error())
				assert.Equal(t, test.blames, strings.Contains(reason, "waiting for that process to exit"), reason)
			})
		})
	}
}

func TestPollingIsOnePhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newStage(bootstrap.New, bootstrap.Progress)
		s.start(t, time.Hour)
		now := s.driver.Snapshot()
		assert.Equal(t, start, now.PhaseSince)
		assert.NotContains(t, now.Reason, "querying the initialization status", "polling does not replace the reason")
		assert.Contains(t, now.Reason, "the initialization is in progress")
		s.succeed()
		pass(time.Minute)
		assert.True(t, s.driver.Snapshot().PhaseSince.After(start.Add(time.Hour)))
	})
}

func TestHistory_failingLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		attempt := 0
		s.statuses = []bootstrap.InitializationStatus{bootstrap.Progress}
		s.status = func(context.Context) error {
			loop := []bootstrap.InitializationStatus{bootstrap.New, bootstrap.Progress, bootstrap.Progress, bootstrap.Failed}
			s.statuses = []bootstrap.InitializationStatus{loop[attempt%len(loop)]}
			attempt++
			return nil
		}
		s.start(t, 10*time.Hour)
		history := s.driver.Snapshot().History
		assert.LessOrEqual(t, len(history), 8)
		assert.Equal(t, Started, history[0].Event, "a loop displaces no other transition")
	})
}
