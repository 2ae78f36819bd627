package lifecycle_test

import (
	_ "embed"
	"flag"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine"
)

// review is the file for the page of `make review`.
var review = flag.String("review", "", "write the review page to this file")

//go:embed review_test.html
var reviewPage string

// page is the content of the review page.
type page struct {
	Diagram   template.HTML
	States    []reviewState
	Matrix    []reviewEvent
	Scenarios []reviewScenario
	Explored  int
	Promises  []string
}

type reviewState struct {
	statemachine.StateInfo
	Rows []reviewRow
	Rest []reviewRest
}

// reviewEvent is a line of the matrix: what each state answers to one event.
type reviewEvent struct {
	Event Event
	Cells [][]string
}

type reviewRow struct {
	Row
	Number    int
	Does      string
	Steps     []string // the transition tests that take it
	Scenarios []string // ids of the scenarios that take it
}

// reviewRest is the events that a state answers without a row, by answer.
type reviewRest struct {
	Answer Answer
	Events string
}

type reviewScenario struct {
	ID, Title, Status, Record string
	Lines                     []reviewLine
}

type reviewLine struct {
	Phrase, Answer string
	From, To       State
	Moves          bool
}

func TestTheReviewPageShowsEverything(t *testing.T) {
	var b strings.Builder
	page := newPage(t)
	require.NoError(t, template.Must(template.New("review").Parse(reviewPage)).Execute(&b, page))
	html := b.String()
	for _, s := range sentences {
		assert.True(t, strings.Contains(html, template.HTMLEscapeString(s.Story)), "sentence: %s", s.Story)
	}
	for _, s := range page.Scenarios {
		assert.True(t, strings.Contains(html, template.HTMLEscapeString(s.Title)), "scenario: %s", s.Title)
	}
	for _, foreign := range []string{"http:", "https:", "<script", "@import", "url("} {
		own := strings.ReplaceAll(strings.ReplaceAll(html, "http://www.w3.org/", ""), "https://www.w3.org/", "")
		assert.False(t, strings.Contains(own, foreign), "the page needs nothing from elsewhere: %s", foreign)
	}
	if *review != "" {
		require.NoError(t, os.WriteFile(*review, []byte(html), 0o644))
	}
}

func newPage(t *testing.T) page {
	t.Helper()
	p := page{
		Diagram: template.HTML(Drawing.SVG()), Explored: len(explore().from),
	}
	for _, promise := range promises {
		p.Promises = append(p.Promises, promise.what)
	}
	told := scenarios(t)
	for _, played := range told {
		p.Scenarios = append(p.Scenarios, reviewed(played))
	}
	slices.SortFunc(p.Scenarios, func(a, b reviewScenario) int { return strings.Compare(a.ID, b.ID) })
	for _, state := range States {
		p.States = append(p.States, reviewState{state, rowsOf(state.Name, told), restOf(state.Name)})
	}
	for _, event := range tested.Events() {
		p.Matrix = append(p.Matrix, matrixLine(event))
	}
	return p
}

func matrixLine(event Event) reviewEvent {
	line := reviewEvent{Event: event}
	for _, state := range tested.StateNames() {
		var cell []string
		for _, row := range tested.Rows(state, event) {
			cell = append(cell, matrixAnswer(row))
		}
		if len(cell) == 0 {
			cell = []string{string(answerWithoutRow(state, event))}
		}
		line.Cells = append(line.Cells, cell)
	}
	return line
}

func matrixAnswer(row Row) string {
	text := "→ " + string(row.To)
	if row.From == row.To {
		text = "stays"
	}
	if row.When != Always {
		text += " if " + string(row.When)
	}
	return text
}

func rowsOf(state State, told []scenario) []reviewRow {
	var rows []reviewRow
	for i, row := range Table {
		if row.From == state {
			rows = append(rows, reviewRow{row, i + 1, does(row), stepsTaking(i), scenariosTaking(i, told)})
		}
	}
	return rows
}

func does(row Row) string {
	var names []string
	for _, action := range row.Do {
		names = append(names, string(action))
	}
	return strings.Join(names, ", ")
}

func stepsTaking(row int) []string {
	var stories []string
	rules := NewRules(Table, Elsewhere)
	for _, s := range sentences {
		for _, from := range s.In.States() {
			if _, decision := rules.Step(Core{State: from, Facts: s.Given}, s.On, s.Told); decision.Row == row {
				stories = append(stories, s.Story)
			}
		}
	}
	return stories
}

func scenariosTaking(row int, told []scenario) []string {
	var ids []string
	for _, played := range told {
		if slices.ContainsFunc(played.lines, func(l answered) bool { return l.Row == row }) {
			ids = append(ids, played.id)
		}
	}
	slices.Sort(ids)
	return ids
}

func restOf(state State) []reviewRest {
	var rest []reviewRest
	for _, answer := range []Answer{statemachine.Ignore, Reject} {
		var events []string
		for _, event := range tested.Events() {
			if !tested.Has(state, event) && answerWithoutRow(state, event) == answer {
				events = append(events, string(event))
			}
		}
		if len(events) > 0 {
			rest = append(rest, reviewRest{answer, strings.Join(events, ", ")})
		}
	}
	return rest
}

func reviewed(played scenario) reviewScenario {
	s := reviewScenario{
		ID: played.id, Title: played.title, Record: played.record,
		Status: fmt.Sprintf("%d, %s", played.core.Facts.Status, played.core.Facts.Status),
	}
	for _, l := range played.lines {
		s.Lines = append(s.Lines, reviewLine{
			Phrase: l.phrase, From: l.from, To: l.To, Moves: l.Answer == Move, Answer: l.did(),
		})
	}
	return s
}

// did returns what the machine does other than moving, in words.
func (l answered) did() string {
	if l.Row < 0 {
		return string(l.Answer) + ": " + l.Why
	}
	return does(Table[l.Row])
}
