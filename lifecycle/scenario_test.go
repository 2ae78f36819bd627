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

// A scenarioFile is a file in testdata/scenarios. It contains a script of phrases, each of which is an event, and the
// reactions of the machine.
type scenarioFile struct {
	path, title string
	script      []string
	plays       []scenario // one scenario, or one for each state of a group
}

// input is an event together with its payload.
type input struct {
	event   Event
	payload Payload
}

// A scenario is the result of playing a scenario file once.
type scenario struct {
	id, title string
	as        string // for a state of a group: the id of the file whose events lead to the state
	shared    int    // number of lines taken from the start of that file
	lines     []answered
	core      Core
	record    string // expected content of the exit record
}

// An answered phrase is an event together with the reaction of the machine.
type answered struct {
	phrase string
	from   State
	statemachine.Decision
}

// read reads the title and the script of a scenario file. The recorded reactions in the file are ignored.
func read(t *testing.T, path string) scenarioFile {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	parsed := scenarioFile{path: path}
	script, _, _ := strings.Cut(string(content), "----\n")
	for line := range strings.Lines(script) {
		phrase := strings.TrimSpace(line)
		if title, isTitle := strings.CutPrefix(phrase, "# "); isTitle {
			parsed.title = title
		} else if phrase != "" {
			parsed.script = append(parsed.script, phrase)
		}
	}
	return parsed
}

func (s *scenarioFile) id() string { return strings.TrimSuffix(filepath.Base(s.path), ".txt") }

// group returns the group of states in each of which the file is played, if the script starts with the phrase for a
// group.
func (s *scenarioFile) group() (Group, bool) {
	group, found := groupPhrases[s.script[0]]
	return group, found
}

// perform applies the events of a script to a new machine.
func perform(t *testing.T, id, title string, script []string) scenario {
	t.Helper()
	played := scenario{id: id, title: title, core: NewCore(), record: "unchanged"}
	rules := NewRules(Table, Elsewhere)
	for _, phrase := range script {
		h, known := phrases[phrase]
		require.True(t, known, "%s: unknown phrase %q; the known phrases are:\n  %s", id, phrase,
			strings.Join(slices.Sorted(maps.Keys(phrases)), "\n  "))
		from := played.core.State
		var decision statemachine.Decision
		played.core, decision = rules.Step(played.core, h.event, h.payload)
		played.keepRecord(h, decision.Do)
		played.lines = append(played.lines, answered{phrase, from, decision})
	}
	return played
}

// playIn plays a file in a state. The first file whose scenario visits the state provides the events that lead to it.
func (s *scenarioFile) playIn(t *testing.T, state State, all []scenarioFile) scenario {
	t.Helper()
	for _, other := range all {
		if _, grouped := other.group(); grouped {
			continue
		}
		if path := pathTo(state, other.plays[0].lines); path != nil {
			played := perform(t, s.id()+"-in-"+string(state), fmt.Sprintf("%s: in %s", s.title, state), append(path, s.script[1:]...))
			played.as, played.shared = other.id(), len(path)
			return played
		}
	}
	require.Fail(t, fmt.Sprintf("no scenario visits %s, so %q cannot be played there: add a scenario to testdata/scenarios", state, s.title))
	return scenario{}
}

// pathTo returns the phrases up to the first visit to a state, or nil if the state is not visited.
func pathTo(state State, lines []answered) (path []string) {
	for _, line := range lines {
		path = append(path, line.phrase)
		if line.To == state {
			return path
		}
	}
	return nil
}

// keepRecord updates the expected content of the exit record after an event and its actions.
func (s *scenario) keepRecord(h input, do []Action) {
	switch {
	case h.event == DataInUse:
		s.record = "invalidated"
	case s.record == "invalidated":
	case h.payload.Status == exitcode.BadRecord && s.record != "unchanged":
		s.record = "removed"
	case slices.Contains(do, RemoveRecord):
		s.record = "removed"
	case slices.Contains(do, WriteRecord):
		s.record = string(s.core.Facts.RecordWord())
	case slices.Contains(do, RestoreRecord):
		s.record = "unchanged"
	}
}

// String returns the content of the file, including the reactions.
func (s *scenarioFile) String() string {
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

// scenarioFiles plays all files in testdata/scenarios and returns them in the order of their names. Files for a group
// are played last, because their scenarios start with events from other files.
func scenarioFiles(t *testing.T) []scenarioFile {
	t.Helper()
	paths, err := filepath.Glob("../testdata/scenarios/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	var all []scenarioFile
	for _, path := range paths {
		s := read(t, path)
		if _, grouped := s.group(); !grouped {
			s.plays = []scenario{perform(t, s.id(), s.title, s.script)}
		}
		all = append(all, s)
	}
	for i := range all {
		if group, grouped := all[i].group(); grouped {
			for _, state := range group {
				all[i].plays = append(all[i].plays, all[i].playIn(t, state, all))
			}
		}
	}
	return all
}

// scenarios returns one scenario for each file and each state in which the file is played.
func scenarios(t *testing.T) []scenario {
	t.Helper()
	var played []scenario
	for _, s := range scenarioFiles(t) {
		played = append(played, s.plays...)
	}
	return played
}

func TestCommittedScenarios(t *testing.T) {
	for _, s := range scenarioFiles(t) {
		t.Run(s.id(), func(t *testing.T) {
			statemachinetest.AssertGenerated(t, s.path, s.String())
		})
	}
}

// Every scenario must end in Terminated, and no event may be rejected. Together, the scenarios must cover every row.
func TestScenarios_coverEveryRow(t *testing.T) {
	taken := map[int]bool{}
	for _, played := range scenarios(t) {
		assert.Equal(t, Terminated, played.core.State, "%s must end in Terminated", played.id)
		for _, line := range played.lines {
			assert.NotEqual(t, statemachine.Reject, line.Answer, "%s: %s", played.id, line.phrase)
			taken[line.Row] = true
		}
	}
	for i, row := range Table {
		assert.True(t, taken[i], "no scenario covers the row %s, %s [%s]: add one to testdata/scenarios", row.From, row.On, row.When)
	}
}

// phrases maps the phrases of scripts to events.
var phrases = map[string]input{
	"the process starts":                            {Started, Payload{}},
	"another process holds the volume lock":         {VolumeBusy, Payload{}},
	"the sidecar returns New":                       {Replied, Payload{Word: bootstrap.New}},
	"the sidecar returns Progress":                  {Replied, Payload{Word: bootstrap.Progress}},
	"the sidecar returns Successful":                {Replied, Payload{Word: bootstrap.Successful}},
	"the sidecar returns Failed":                    {Replied, Payload{Word: bootstrap.Failed}},
	"the validation fails permanently":              {Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}},
	"the sidecar returns an unknown status":         {Replied, Payload{Word: unknownStatus}},
	"the sidecar does not respond":                  {NoAnswer, Payload{}},
	"the initialization is accepted":                {Accepted, Payload{}},
	"the initialization is not accepted":            {NotAccepted, Payload{}},
	"the timer fires":                               {Elapsed, Payload{}},
	"another process has the data open for writing": {DataInUse, Payload{}},
	"another process has locked the data directory": {DataInUse, Payload{}},
	"the sidecar returns Successful while the prefetched configuration is recent":   {Replied, Payload{Word: bootstrap.Successful, Early: true}},
	"the sidecar returns Successful after the prefetched configuration has expired": {Replied, Payload{Word: bootstrap.Successful}},
	"the prefetched configuration is usable":                                        {ConfigPrefetched, Payload{Config: some, Early: true}},
	"the prefetched configuration is not usable":                                    {ConfigPrefetched, Payload{}},
	"the configuration is fetched":                                                  {ConfigFetched, Payload{Config: some}},
	"a certificate file is not usable":                                              {ConfigUnavailable, Payload{}},
	"the configuration is valid":                                                    {ConfigValid, Payload{}},
	"the configuration is invalid":                                                  {ConfigInvalid, Payload{Status: exitcode.BadConfig}},
	"the configuration cannot be fetched":                                           {ConfigUnavailable, Payload{}},
	"etcd is ready":                                                                 {EtcdReady, Payload{}},
	"etcd does not start":                                                           {EtcdFailed, Payload{Status: exitcode.EtcdFailed}},
	"etcd stops unexpectedly":                                                       {EtcdFailed, Payload{Status: exitcode.EtcdFailed}},
	"the exit record cannot be removed":                                             {EtcdFailed, Payload{Status: exitcode.BadRecord}},
	"etcd is closed cleanly":                                                        {EtcdClosed, Payload{ClosedCleanly: true}},
	"etcd is not closed cleanly":                                                    {EtcdClosed, Payload{Status: exitcode.EtcdFailed}},
	"etcd was never opened":                                                         {EtcdClosed, Payload{NeverOpened: true}},
	"the exit record is final":                                                      {RecordSettled, Payload{}},
	"the exit record cannot be written":                                             {RecordSettled, Payload{Status: exitcode.BadRecord}},
	"SIGTERM":                                                                       {Signal, Payload{Signal: syscall.SIGTERM}},
	"SIGINT":                                                                        {Signal, Payload{Signal: syscall.SIGINT}},
	"POST /stop":                                                                    {StopPosted, Payload{}},
	"the wrapper's own server fails":                                                {ListenerLost, Payload{Status: exitcode.ServerTaken}},
	"a goroutine panics, or etcd logs a fatal error":                                {Crashed, Payload{}},
}

// groupPhrases maps the first phrase of a file for a group to the group. The file is played in each of its states.
var groupPhrases = map[string]Group{
	"in each state before etcd is started": BeforeEtcd,
	"in each state after etcd is started":  WithEtcd,
	"in each state before a stop":          BeforeEnd,
}
