package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Diagram describes how to draw a state machine.
type Diagram struct {
	Name     string // name of the graph
	Source   string // command that prints the graph
	Table    []Row
	States   []StateInfo
	Initial  State
	Final    State
	Shapes   map[State]string // Graphviz attributes of states that differ from the default style
	Aside    State            // state that is not on the path to success; its incoming edges have a muted color
	Defaults []Default
	// Picture is the SVG that Graphviz generated from DOT. The first line of the SVG identifies the DOT, so a test
	// can detect an outdated picture. The picture is embedded because no small library can produce a comparable
	// layout.
	Picture string
}

// StateInfo describes a state to users.
type StateInfo struct {
	Name     State  `json:"name"`
	Meaning  string `json:"meaning"`
	Bound    Bound  `json:"-"`        // what limits the time in the state
	Deadline string `json:"deadline"` // Bound in words, for users
}

// Bound specifies what limits the time in a state.
type Bound string

// Time limits of a state.
const (
	ByTimer Bound = "timer" // the timer of the state is always set
	ByCalls Bound = "calls" // each call has its own deadline, and the timer is set between calls
	NoBound Bound = "none"  // the work in the state has no deadline; the timer is set while there is no work
	AtEnd   Bound = "end"   // the final state
)

// Elapsed is the event that occurs when the timer of a state fires. All machines use it.
const Elapsed Event = "elapsed"

// edge collects all rows between the same two states, which are drawn as a single arrow.
type edge struct {
	from, to State
	groups   []reasonGroup
}

// reasonGroup collects the rows of an edge that have the same actions and reason.
type reasonGroup struct {
	events   []string // events with their guards
	actions  []Action
	deadline string
	why      string
}

// edges groups the rows into edges, in the order of the table.
func (d *Diagram) edges() []*edge {
	var folded []*edge
	for i := range d.Table {
		row := &d.Table[i]
		at := slices.IndexFunc(folded, func(a *edge) bool { return a.from == row.From && a.to == row.To })
		if at < 0 {
			at = len(folded)
			folded = append(folded, &edge{from: row.From, to: row.To})
		}
		folded[at].add(row, d.deadline(row))
	}
	return folded
}

func (a *edge) add(row *Row, deadline string) {
	for i := range a.groups {
		if group := &a.groups[i]; group.why == row.Why && slices.Equal(group.actions, row.Do) {
			group.events = append(group.events, row.Edge())
			return
		}
	}
	a.groups = append(a.groups, reasonGroup{
		events: []string{row.Edge()}, actions: row.Do, deadline: deadline, why: row.Why,
	})
}

// deadline returns the deadline of the row's state if the row handles Elapsed, or "" otherwise.
func (d *Diagram) deadline(row *Row) string {
	at := slices.IndexFunc(d.States, func(s StateInfo) bool { return s.Name == row.From })
	if row.On != Elapsed || at < 0 {
		return ""
	}
	return d.States[at].Deadline
}

// DOT returns the table as a Graphviz graph. Rows that do not change the state are listed inside the state. The
// output is deterministic.
func (d *Diagram) DOT() string {
	var b strings.Builder
	fmt.Fprintf(&b, dotHeader, d.Source, d.Name)
	folded := d.edges()
	for _, state := range d.States {
		fmt.Fprintf(&b, "  %s [id=\"state_%s\", %slabel=<%s>];\n", state.Name, state.Name, d.Shapes[state.Name], dotState(state, folded))
	}
	fmt.Fprintf(&b, "\n  begin -> %s;\n", d.Initial)
	for _, a := range folded {
		if a.from != a.to {
			fmt.Fprintf(&b, "  %s -> %s [id=\"edge_%s_%s\", %slabel=<%s>];\n", a.from, a.to, a.from, a.to, d.dotAttributes(a), join(a.groups, "<br/>", reasonGroup.dot))
		}
	}
	b.WriteString("}\n")
	return b.String()
}

const dotHeader = `// Generated from the transition table by "%s". Do not edit.
digraph %s {
  graph [rankdir=TB, nodesep=0.4, ranksep=0.5, fontname="Helvetica"];
  node [shape=box, style="rounded,filled", fillcolor="#eef3fb", color="#34557f", fontname="Helvetica", fontsize=10];
  edge [fontname="Helvetica", fontsize=10, color="#555555"];

  begin [shape=circle, style=filled, fillcolor=black, label="", width=0.2];
`

// wrapAt is the line width in the picture, in characters.
const wrapAt = 34

// dotState returns the label of a state: the name, the meaning and the rows that do not change the state.
func dotState(state StateInfo, folded []*edge) string {
	label := fmt.Sprintf("<font point-size=\"16\"><b>%s</b></font><br/>%s<br/>within: %s", state.Name,
		escape(wrap(state.Meaning)), escape(wrap(state.Deadline)))
	for _, a := range folded {
		if a.from == state.Name && a.to == state.Name {
			label += "<br/><br/>" + join(a.groups, "<br/>", reasonGroup.dot)
		}
	}
	return label
}

// dotAttributes returns the Graphviz attributes of an edge. Edges to the Aside state have a muted color.
func (d *Diagram) dotAttributes(a *edge) string {
	if a.to == d.Aside {
		return `color="#c09090", fontcolor="#804040", `
	}
	return ""
}

// join joins the elements of a list into a string.
func join[T any](list []T, separator string, text func(T) string) string {
	texts := make([]string, len(list))
	for i, each := range list {
		texts[i] = text(each)
	}
	return strings.Join(texts, separator)
}

// dot returns a label that lists the events and guards, the deadline, the reason and the actions.
func (g reasonGroup) dot() string {
	label := "<b>" + escape(g.events) + "</b>"
	if g.deadline != "" {
		label += "<br/>" + escape(wrap("after "+g.deadline))
	}
	label += "<br/><i>" + escape(wrap(g.why)) + "</i>"
	if len(g.actions) > 0 {
		label += "<br/>" + escape(wrap("/ "+actionNames(g.actions)))
	}
	return label
}

func actionNames(actions []Action) string {
	return join(actions, ", ", func(a Action) string { return string(a) })
}

// escape escapes lines for an HTML-like label.
func escape(lines []string) string {
	return join(lines, "<br/>", strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace)
}

// wrap breaks a string at spaces into lines of about wrapAt characters.
func wrap(text string) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > wrapAt {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

// Mermaid returns the table as a Mermaid state diagram, which GitHub renders in a README. To stay readable, the
// diagram shows only events and guards.
func (d *Diagram) Mermaid() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	fmt.Fprintf(&b, "    [*] --> %s\n", d.Initial)
	for _, a := range d.edges() {
		if a.from != a.to {
			events := join(a.groups, "<br/>", func(g reasonGroup) string { return strings.Join(g.events, "<br/>") })
			fmt.Fprintf(&b, "    %s --> %s: %s\n", a.from, a.to, events)
		}
	}
	fmt.Fprintf(&b, "    %s --> [*]\n", d.Final)
	return b.String()
}

// JSON returns the states, the table and the defaults as a JSON document.
func (d *Diagram) JSON() string {
	document := struct {
		States      []StateInfo `json:"states"`
		Transitions []Row       `json:"transitions"`
		Elsewhere   []Default   `json:"elsewhere"`
	}{d.States, d.Table, d.Defaults}
	text, _ := json.MarshalIndent(document, "", "  ") // cannot fail: the document contains only strings
	return string(text) + "\n"
}

// SVG returns the picture. The ID of a state is "state_NAME", and the ID of an edge is "edge_FROM_TO".
func (d *Diagram) SVG() string {
	_, svg, _ := strings.Cut(d.Picture, "\n")
	return svg
}

// Matrix lists the answer to every event in every state. The list is committed so that reviewers see every change of
// behavior.
func (r *Rules[F, P]) Matrix(states []StateInfo) string {
	var b strings.Builder
	b.WriteString(matrixHeader)
	for _, state := range states {
		fmt.Fprintf(&b, "\n%s: %s\n  deadline: %s\n", state.Name, state.Meaning, state.Deadline)
		for _, event := range r.events {
			b.WriteString(r.linesOf(key{state.Name, event}))
		}
	}
	return b.String()
}

const matrixHeader = `The machine's answer to every event in every state. Generated by "make dot". Do not edit.

For each event, the first answer whose guard holds applies.
`

// linesOf returns one line for each possible answer to an event in a state.
func (r *Rules[F, P]) linesOf(at key) string {
	indices := r.byKey[at]
	if len(indices) == 0 {
		answer, why := r.defaultFor(at.state, at.event)
		return fmt.Sprintf("  %-20s %s (%s)\n", at.event, answer, why)
	}
	var b strings.Builder
	for _, i := range indices {
		b.WriteString(r.rows[i].line())
	}
	return b.String()
}

func (row *Row) line() string {
	where := "-> " + string(row.To)
	if !row.Moves() {
		where = "stay"
	}
	if row.When != Always {
		where += fmt.Sprintf(" if %s", row.When)
	}
	if len(row.Do) > 0 {
		where += ": " + actionNames(row.Do)
	}
	return fmt.Sprintf("  %-20s %s (%s)\n", row.On, where, row.Why)
}
