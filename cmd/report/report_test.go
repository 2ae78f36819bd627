package report

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
)

func document(t *testing.T, run *lifecycle.Snapshot) string {
	text, err := json.Marshal(New(standing(run), &place{began: time.Unix(1.7e9, 0)}, "v1", "etcd-main-0").Document())
	require.NoError(t, err)
	return string(text)
}

// Each field is taken away in turn; a document that does not change by that does not tell of it.
func TestTheDocumentTellsOfEveryFieldOfTheLifecycle(t *testing.T) {
	complete := document(t, full())
	for _, part := range []func(*lifecycle.Snapshot) any{
		func(s *lifecycle.Snapshot) any { return s },
		func(s *lifecycle.Snapshot) any { return &s.Trouble },
		func(s *lifecycle.Snapshot) any { return &s.Validation },
		func(s *lifecycle.Snapshot) any { return &s.History[0] },
		func(s *lifecycle.Snapshot) any { return &s.Tallies[0] },
	} {
		kind := reflect.TypeOf(part(full())).Elem()
		for i := range kind.NumField() {
			field := kind.Field(i)
			if !field.IsExported() {
				continue
			}
			run := full()
			value := reflect.ValueOf(part(run)).Elem().Field(i)
			assert.False(t, value.IsZero(), "give %s.%s a value in this test", kind, field.Name)
			value.SetZero()
			assert.NotEqual(t, complete, document(t, run), "%s.%s is not in status.Document: add it there and in Document", kind, field.Name)
		}
	}
}

func TestEveryFieldOfTheDocumentIsFilledIn(t *testing.T) {
	var visit func(path string, value reflect.Value)
	visit = func(path string, value reflect.Value) {
		switch {
		case value.Kind() == reflect.Pointer:
			visit(path, value.Elem())
		case value.Kind() == reflect.Slice && value.Len() > 0:
			visit(path, value.Index(0))
		case value.Kind() == reflect.Struct && value.Type() != reflect.TypeFor[time.Time]():
			for i := range value.NumField() {
				visit(path+"."+value.Type().Field(i).Name, value.Field(i))
			}
		case path != "Document.Ready": // nothing is watched here
			assert.False(t, value.IsZero(), "%s is always empty: fill it in in Document", path)
		}
	}
	told := New(standing(full()), &place{began: time.Unix(1.7e9, 0)}, "v1", "etcd-main-0").Document()
	visit("Document", reflect.ValueOf(&told))
}

func TestTheReportKnowsSinceWhenTheMemberIsNotReady(t *testing.T) {
	began, at := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	since := func(run *lifecycle.Snapshot) time.Time {
		return New(standing(run), &place{began: began}, "v1", "etcd-main-0").Document().ReadySince
	}
	assert.Equal(t, began, since(&lifecycle.Snapshot{State: lifecycle.Wait, Since: at}), "whatever it has been doing")
	left := lifecycle.Transition{At: at, From: lifecycle.Serving, To: lifecycle.Terminating}
	assert.Equal(t, at, since(&lifecycle.Snapshot{State: lifecycle.Terminating, Since: at, History: []lifecycle.Transition{left}}))
	assert.WithinDuration(t, time.Now(), since(&lifecycle.Snapshot{State: lifecycle.Serving, Since: at}), 10*time.Second, "since the monitor is there")
}

func TestTheReasonTellsHowFarTheStartHasCome(t *testing.T) {
	run := &lifecycle.Snapshot{State: lifecycle.StartEtcd, Reason: "etcd is started"}
	there := &place{}
	about := New(standing(run), there, "v1", "etcd-main-0")
	assert.Equal(t, "etcd is started", about.Phase().Reason, "nothing is opened yet")
	there.progress = "opens its data"
	assert.Equal(t, "etcd is started; etcd opens its data", about.Phase().Reason)
	assert.Equal(t, "etcd is started; etcd opens its data", about.Document().Reason)
	run.State = lifecycle.Serving
	assert.Equal(t, "etcd is started", about.Phase().Reason)
	assert.True(t, about.Phase().Serving)
}

func TestTheHeadlineOfAMemberThatServesSaysWhyItIsNotReady(t *testing.T) {
	run := &lifecycle.Snapshot{State: lifecycle.Serving, Since: time.Now(), Reason: "etcd has joined its cluster"}
	reason := New(standing(run), &place{}, "v1", "etcd-main-0").Document().Reason
	assert.Regexp(t, "^etcd has joined its cluster, but is not ready: quorum: ", reason)
}

func TestTheLastWordsSayNothingTwice(t *testing.T) {
	run := full()
	run.Trouble.Text = "etcd did not start: port taken"
	words := New(standing(run), &place{}, "v1", "etcd-main-0").LastWords(lifecycle.Outcome{Reason: run.Trouble.Text + "; look there"})
	assert.Equal(t, 1, strings.Count(words, "port taken"), words)
}

func TestTheLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := full()
		run.Trouble.At = time.Now().Add(-3 * time.Second)
		there := &place{began: time.Now().Add(-time.Hour), record: exitcode.Terminated}
		about := New(standing(run), there, "v1", "etcd-main-0")
		assert.Equal(t, `clean stop: stop asked for (terminated)
state: Serving, left after 1m0s
exit record: terminated, so the next start validates in sanity mode
durations: run 1h0m0s, etcd's start 2s, its close 2s, of that draining 70ms
last trouble: etcd, 3s ago, over since: etcd stopped
`, about.LastWords(lifecycle.Outcome{Reason: "stop asked for (terminated)\nand a trace"}))
		there.unstored = errors.New("revisions 8 to 9 are not in the store: store unavailable")
		assert.Contains(t, about.LastWords(lifecycle.Outcome{}), "\nbackups: revisions 8 to 9 are not in the store: store unavailable; the next start goes on from there\n")
		there.record = ""
		assert.Contains(t, about.LastWords(lifecycle.Outcome{}), "exit record: none, so the next start validates in full\n")
	})
}

// hung is a world whose volume does not answer.
type hung struct {
	place
	forever chan struct{}
}

func (h *hung) Record() (exitcode.Word, error) {
	<-h.forever
	return "", nil
}

func TestAVolumeThatHangsDoesNotKeepTheLastWordsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := &hung{forever: make(chan struct{})}
		began := time.Now()
		words := New(standing(full()), world, "v1", "etcd-main-0").LastWords(lifecycle.Outcome{Status: exitcode.OutOfTime, Reason: "the disk hangs"})
		assert.LessOrEqual(t, time.Since(began), 200*time.Millisecond)
		assert.Contains(t, words, "the disk hangs")
		assert.Contains(t, words, "exit record: unknown: the volume does not answer")
		close(world.forever)
	})
}
