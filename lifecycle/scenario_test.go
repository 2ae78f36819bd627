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
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

// A story is a file with events and the reactions of the machine, for one state or for each state of a group.
type story struct {
	path, title string
	script      []string
	plays       []scenario
}

// happening is an event together with its payload.
type happening struct {
	event   Event
	payload Payload
}

// A scenario is a story that was played.
type scenario struct {
	id, title string
	as        string // for a state of a group: the scenario with the same start
	shared    int    // number of leading lines shared with that scenario
	lines     []answered
	core      Core
	record    string
}

// answered is an event together with the reaction.
type answered struct {
	phrase string
	from   State
	statemachine.Decision
}

// read returns the title and the script of a story without the recorded reactions.
func read(t *testing.T, path string) story {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	told := story{path: path}
	script, _, _ := strings.Cut(string(content), "----\n")
	for line := range strings.Lines(script) {
		phrase := strings.TrimSpace(line)
		if title, isTitle := strings.CutPrefix(phrase, "# "); isTitle {
			told.title = title
		} else if phrase != "" {
			told.script = append(told.script, phrase)
		}
	}
	return told
}

func (s *story) id() string { return strings.TrimSuffix(filepath.Base(s.path), ".txt") }

// group returns the states in which to play the story, if there is more than one.
func (s *story) group() (Group, bool) {
	group, is := everywhere[s.script[0]]
	return group, is
}

// perform applies the events of phrases to the machine.
func perform(t *testing.T, id, title string, script []string) scenario {
	t.Helper()
	played := scenario{id: id, title: title, core: NewCore(), record: "as it was found"}
	rules := NewRules(Table, Elsewhere)
	for _, phrase := range script {
		h, known := phrases[phrase]
		require.True(t, known, "%s: there is no phrase %q; a scenario is told in these:\n  %s", id, phrase,
			strings.Join(slices.Sorted(maps.Keys(phrases)), "\n  "))
		from := played.core.State
		var decision statemachine.Decision
		played.core, decision = rules.Step(played.core, h.event, h.payload)
		played.keepRecord(h, decision.Do)
		played.lines = append(played.lines, answered{phrase, from, decision})
	}
	return played
}

// playIn plays a story in a state. The preceding events are those of the first story that visits the state.
func (s *story) playIn(t *testing.T, state State, all []story) scenario {
	t.Helper()
	for _, other := range all {
		if _, folded := other.group(); folded {
			continue
		}
		if way := wayTo(state, other.plays[0].lines); way != nil {
			played := perform(t, s.id()+"-in-"+string(state), fmt.Sprintf("%s: in %s", s.title, state), append(way, s.script[1:]...))
			played.as, played.shared = other.id(), len(way)
			return played
		}
	}
	require.Fail(t, fmt.Sprintf("no scenario comes to %s, so that %q can't be played there: tell one in testdata/scenarios", state, s.title))
	return scenario{}
}

// wayTo returns the events that lead to a state, or nil if there are none.
func wayTo(state State, lines []answered) (way []string) {
	for _, line := range lines {
		way = append(way, line.phrase)
		if line.To == state {
			return way
		}
	}
	return nil
}

// keepRecord tracks the exit record.
func (s *scenario) keepRecord(h happening, do []Action) {
	switch {
	case h.event == DataInUse:
		s.record = "gone for good"
	case s.record == "gone for good":
	case h.payload.Status == exitcode.BadRecord && s.record != "as it was found":
		s.record = "removed"
	case slices.Contains(do, RemoveRecord):
		s.record = "removed"
	case slices.Contains(do, WriteRecord):
		s.record = string(s.core.Facts.RecordWord())
	case slices.Contains(do, RestoreRecord):
		s.record = "as it was found"
	}
}

// String returns the story in the golden format.
func (s *story) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n----\n", s.title, strings.Join(s.script, "\n"))
	for i, played := range s.plays {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(played.String())
	}
	return b.String()
}

func (s scenario) String() string {
	var b strings.Builder
	if s.as != "" {
		fmt.Fprintf(&b, "In %s, as in %s:\n", s.lines[s.shared-1].To, s.as)
	}
	for _, line := range s.lines[s.shared:] {
		fmt.Fprintf(&b, "%s: %s\n", line.phrase, line.answer())
	}
	fmt.Fprintf(&b, "\nvisits: %s\n", strings.Join(asStrings(s.visits()), ", "))
	if s.core.State == Terminated {
		fmt.Fprintf(&b, "exit status: %d (%s)\n", s.core.Facts.Status, s.core.Facts.Status)
	}
	fmt.Fprintf(&b, "exit record: %s\n", s.record)
	return b.String()
}

func (l answered) answer() string {
	if l.Row < 0 {
		return fmt.Sprintf("%s in %s (%s)", l.Answer, l.from, l.Why)
	}
	text := fmt.Sprintf("%s -> %s", l.from, l.To)
	if l.Answer == statemachine.Stay {
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
		if line.Answer == statemachine.Move {
			visited = append(visited, line.To)
		}
	}
	return visited
}

// stories plays all stories in testdata/scenarios in the order of their file names. Stories for a group come last,
// because they begin with parts of other stories.
func stories(t *testing.T) []story {
	t.Helper()
	paths, err := filepath.Glob("../testdata/scenarios/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	var all []story
	for _, path := range paths {
		told := read(t, path)
		if _, folded := told.group(); !folded {
			told.plays = []scenario{perform(t, told.id(), told.title, told.script)}
		}
		all = append(all, told)
	}
	for i := range all {
		if group, folded := all[i].group(); folded {
			for _, state := range group {
				all[i].plays = append(all[i].plays, all[i].playIn(t, state, all))
			}
		}
	}
	return all
}

// scenarios returns one scenario for each story and each state in which the story is played.
func scenarios(t *testing.T) []scenario {
	t.Helper()
	var played []scenario
	for _, told := range stories(t) {
		played = append(played, told.plays...)
	}
	return played
}

func TestCommittedScenarios(t *testing.T) {
	for _, told := range stories(t) {
		t.Run(told.id(), func(t *testing.T) {
			statemachinetest.AssertGenerated(t, told.path, told.String())
		})
	}
}

// Every story must be complete and contain only possible events. Together, the stories must cover every row.
func TestScenarios_coverEveryRow(t *testing.T) {
	taken := map[int]bool{}
	for _, played := range scenarios(t) {
		assert.Equal(t, Terminated, played.core.State, "%s ends", played.id)
		for _, line := range played.lines {
			assert.NotEqual(t, statemachine.Reject, line.Answer, "%s: %s", played.id, line.phrase)
			taken[line.Row] = true
		}
	}
	for i, row := range Table {
		assert.True(t, taken[i], "no scenario has %s, %s [%s]: tell one in testdata/scenarios", row.From, row.On, row.When)
	}
}

// phrases maps the phrases in stories to events.
var phrases = map[string]happening{
	"the process begins":                         {Started, Payload{}},
	"another process holds the volume":           {VolumeBusy, Payload{}},
	"the sidecar says New":                       {Replied, Payload{Word: bootstrap.New}},
	"the sidecar says Progress":                  {Replied, Payload{Word: bootstrap.Progress}},
	"the sidecar says Successful":                {Replied, Payload{Word: bootstrap.Successful}},
	"the sidecar says Failed":                    {Replied, Payload{Word: bootstrap.Failed}},
	"the validation says Failed for good":        {Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}},
	"the sidecar says a word of its own":         {Replied, Payload{Word: unknownWord}},
	"the sidecar does not answer":                {NoAnswer, Payload{}},
	"the initialization is accepted":             {Accepted, Payload{}},
	"the initialization is not accepted":         {NotAccepted, Payload{}},
	"time passes":                                {Elapsed, Payload{}},
	"an etcd has the data open for writing":      {DataInUse, Payload{}},
	"the data directory is locked by another":    {DataInUse, Payload{}},
	"the sidecar says Successful soon":           {Replied, Payload{Word: bootstrap.Successful, Early: true}},
	"the sidecar says Successful late":           {Replied, Payload{Word: bootstrap.Successful}},
	"the configuration comes early":              {ConfigPrefetched, Payload{Config: some, Early: true}},
	"the early configuration can't be used":      {ConfigPrefetched, Payload{}},
	"the configuration is here":                  {ConfigFetched, Payload{Config: some}},
	"a certificate file can't be used":           {ConfigUnavailable, Payload{}},
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
	"the wrapper's port can't be served":         {ListenerLost, Payload{Status: exitcode.ServerTaken}},
	"a goroutine panics, or etcd calls it fatal": {Crashed, Payload{}},
}

// everywhere lists the opening phrases of stories that are played in each state of a group.
var everywhere = map[string]Group{
	"in each state before etcd":    BeforeEtcd,
	"in each state with etcd":      WithEtcd,
	"in each state before the end": BeforeEnd,
}
