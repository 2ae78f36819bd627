package lifecycle_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// phrases are the words in which scenarios are told, one for everything that can happen.
var phrases = map[string]happening{
	"the process begins":                         {Begun, Payload{}},
	"another process holds the volume":           {VolumeBusy, Payload{}},
	"the sidecar says New":                       {Replied, Payload{Word: bootstrap.New}},
	"the sidecar says Progress":                  {Replied, Payload{Word: bootstrap.Progress}},
	"the sidecar says Successful":                {Replied, Payload{Word: bootstrap.Successful}},
	"the sidecar says Failed":                    {Replied, Payload{Word: bootstrap.Failed}},
	"the sidecar does not answer":                {NoAnswer, Payload{}},
	"the initialization is accepted":             {Accepted, Payload{}},
	"the initialization is not accepted":         {NotAccepted, Payload{}},
	"time passes":                                {Elapsed, Payload{}},
	"the configuration comes early":              {ConfigPrefetched, Payload{Config: some}},
	"the early configuration can't be used":      {ConfigPrefetched, Payload{}},
	"the configuration is valid":                 {ConfigValid, Payload{}},
	"the configuration is invalid":               {ConfigInvalid, Payload{Status: exitcode.BadConfig}},
	"the configuration can't be fetched":         {ConfigUnavailable, Payload{}},
	"etcd is ready":                              {EtcdReady, Payload{}},
	"etcd does not start":                        {EtcdFailed, Payload{Status: exitcode.EtcdFailed}},
	"etcd stops by itself":                       {EtcdFailed, Payload{Status: exitcode.EtcdFailed}},
	"the exit record can't be removed":           {EtcdFailed, Payload{Status: exitcode.BadRecord}},
	"etcd is closed in order":                    {EtcdClosed, Payload{ClosedInOrder: true}},
	"etcd is closed, but not in order":           {EtcdClosed, Payload{Status: exitcode.EtcdFailed}},
	"there is no etcd to close":                  {EtcdClosed, Payload{NeverOpened: true}},
	"the exit record is settled":                 {RecordSettled, Payload{}},
	"the exit record can't be written":           {RecordSettled, Payload{Status: exitcode.BadRecord}},
	"SIGTERM":                                    {Signal, Payload{Signal: syscall.SIGTERM}},
	"SIGINT":                                     {Signal, Payload{Signal: syscall.SIGINT}},
	"POST /stop":                                 {StopPosted, Payload{}},
	"a goroutine panics, or etcd calls it fatal": {Crashed, Payload{}},
}

// scenario is one story: what happens, and what the machine makes of it.
type scenario struct {
	title  string
	script []string
	lines  []telling
	core   Core
	record string
}

// telling is one thing that happened and its answer.
type telling struct {
	phrase string
	from   State
	Decision
}

// tell plays a script on the machine.
func tell(t *testing.T, script string) scenario {
	t.Helper()
	story := scenario{core: NewCore(), record: "as it was found"}
	rules := NewRules(Table, Elsewhere)
	for line := range strings.Lines(script) {
		phrase := strings.TrimSpace(line)
		if title, isTitle := strings.CutPrefix(phrase, "# "); isTitle {
			story.title = title
			continue
		}
		if phrase == "" {
			continue
		}
		h, known := phrases[phrase]
		require.True(t, known, "no such phrase: %q", phrase)
		from := story.core.State
		var decision Decision
		story.core, decision = rules.Step(story.core, h.event, h.payload)
		story.keepRecord(h.payload, decision.Do)
		story.script = append(story.script, phrase)
		story.lines = append(story.lines, telling{phrase, from, decision})
	}
	return story
}

// keepRecord follows what becomes of the exit record.
func (s *scenario) keepRecord(payload Payload, do []Action) {
	switch {
	case payload.Status == exitcode.BadRecord && s.record != "as it was found":
		s.record = "removed"
	case slices.Contains(do, RemoveRecord):
		s.record = "removed"
	case slices.Contains(do, WriteRecord):
		s.record = string(s.core.Facts.RecordWord())
	case slices.Contains(do, RestoreRecord):
		s.record = "as it was found"
	}
}

// String is the golden form of a scenario.
func (s scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n----\n", s.title, strings.Join(s.script, "\n"))
	for _, line := range s.lines {
		fmt.Fprintf(&b, "%s: %s\n", line.phrase, line.answer())
	}
	fmt.Fprintf(&b, "\nvisits: %s\n", strings.Join(asStrings(s.visits()), ", "))
	if s.core.State == Terminated {
		fmt.Fprintf(&b, "exit status: %d (%s)\n", s.core.Facts.Status, s.core.Facts.Status)
	}
	fmt.Fprintf(&b, "exit record: %s\n", s.record)
	return b.String()
}

func (l telling) answer() string {
	if l.Row < 0 {
		return fmt.Sprintf("%s in %s (%s)", l.Answer, l.from, l.Why)
	}
	text := fmt.Sprintf("%s -> %s", l.from, l.To)
	if l.Answer == Stay {
		text = "stays in " + string(l.To)
	}
	for i, action := range l.Do {
		text += map[bool]string{true: " / ", false: ", "}[i == 0] + string(action)
	}
	return text
}

func (s scenario) visits() []State {
	visited := []State{Query}
	for _, line := range s.lines {
		if line.Answer == Move {
			visited = append(visited, line.To)
		}
	}
	return visited
}

// scenarios tells every story in testdata/scenarios, in the order of the file names.
func scenarios(t *testing.T) map[string]scenario {
	t.Helper()
	paths, err := filepath.Glob("../testdata/scenarios/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	told := map[string]scenario{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		script, _, _ := strings.Cut(string(content), "----\n")
		told[path] = tell(t, script)
	}
	return told
}

func TestCommittedScenarios(t *testing.T) {
	told := scenarios(t)
	for _, path := range slices.Sorted(maps.Keys(told)) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			assertGenerated(t, path, told[path].String())
		})
	}
}

// No story tells of something that can't be, every story is told to its end, and together they take every row.
func TestTheScenariosTakeEveryRowOfTheTable(t *testing.T) {
	taken := map[int]bool{}
	for path, story := range scenarios(t) {
		assert.Equal(t, Terminated, story.core.State, "%s ends", path)
		for _, line := range story.lines {
			assert.NotEqual(t, Reject, line.Answer, "%s: %s", path, line.phrase)
			taken[line.Row] = true
		}
	}
	for i, row := range Table {
		assert.True(t, taken[i], "no scenario has %s, %s [%s]", row.From, row.On, row.When)
	}
}
