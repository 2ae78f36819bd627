package commandline

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// A Candidate is a possible next word of a command line, with its help text.
type Candidate struct{ Word, Help string }

// Complete returns the candidates for the last word: commands, flags, or the allowed values of a flag or an argument.
// The last word may be empty, and words must not include the program name. Complete returns nothing for etcd's own
// tools, or where any word is allowed, as for a path.
func Complete(parser *kong.Kong, words []string) []Candidate {
	app, last := parser.Model, len(words)-1
	traced, _ := kong.Trace(parser, words[:last]) // on an error, Path ends before the word that is invalid or lacks a value
	node, arguments := app.Node, 0
	for _, step := range traced.Path {
		switch {
		case step.Command != nil && !step.Command.Hidden:
			node, arguments = step.Command, 0
		case step.Positional != nil:
			arguments++
		}
	}
	var before *kong.Flag // flag whose value is the next word
	if last > 0 {
		if flag := flagOf(app, node, words[last-1]); flag != nil && !flag.IsBool() {
			before = flag
		}
	}
	if node.Passthrough {
		return nil
	}
	var all []Candidate
	name, _, valued := strings.Cut(words[last], "=")
	switch {
	case before != nil:
		all = values("", before.Value)
	case strings.HasPrefix(name, "-") && valued:
		if flag := flagOf(app, node, name); flag != nil {
			all = values(name+"=", flag.Value)
		}
	case strings.HasPrefix(name, "-"):
		for _, flag := range append(flagsOf(app, node), app.HelpFlag) {
			all = append(all, Candidate{"--" + flag.Name, flag.Help})
		}
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				all = append(all, Candidate{child.Name, child.Help})
			}
		}
		if arguments < len(node.Positional) {
			all = append(all, values("", node.Positional[arguments])...)
		}
	}
	return slices.DeleteFunc(all, func(c Candidate) bool { return !strings.HasPrefix(c.Word, words[last]) })
}

// flagsOf returns the flags that a command's help lists, except --help. Global flags are only listed in the program's
// help.
func flagsOf(app *kong.Application, node *kong.Node) []*kong.Flag {
	return slices.DeleteFunc(slices.Concat(node.AllFlags(true)...), func(flag *kong.Flag) bool {
		return flag == app.HelpFlag || node != app.Node && slices.Contains(app.Flags, flag)
	})
}

func flagOf(app *kong.Application, node *kong.Node, word string) *kong.Flag {
	for _, flag := range flagsOf(app, node) {
		if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
			return flag
		}
	}
	return nil
}

// values returns the allowed values of a flag or an argument, each prefixed with prefix. values returns nothing if
// any value is allowed.
func values(prefix string, of *kong.Value) (all []Candidate) {
	for _, value := range of.EnumSlice() {
		if value != "" {
			all = append(all, Candidate{prefix + value, ""})
		}
	}
	return all
}
