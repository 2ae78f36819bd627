package commandline

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Candidate is a word that may stand next on a command line, and what it means.
type Candidate struct{ Word, Help string }

// Complete returns what the last of words, which may be empty, can become: commands, flags, or values where only some are
// allowed. The program's own name is not among words. Nothing is returned where any word will do, such as a path, or for etcd's own
// tools.
func Complete(app *kong.Application, words []string) []Candidate {
	node, arguments := app.Node, 0
	var before *kong.Flag // has the next word for its value
	last := len(words) - 1
	for _, word := range words[:last] {
		child := childOf(node, word)
		switch {
		case before != nil:
			before = nil
		case strings.HasPrefix(word, "-"):
			if flag := flagOf(app, node, word); flag != nil && !flag.IsBool() {
				before = flag
			}
		case child != nil:
			node = child
		default:
			arguments++
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
		for _, flag := range flagsOf(app, node) {
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

func childOf(node *kong.Node, name string) *kong.Node {
	if i := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == name }); i >= 0 {
		return node.Children[i]
	}
	return nil
}

// flagsOf returns the flags that the help of a command shows: its own, those of the commands above it, and --help.
func flagsOf(app *kong.Application, node *kong.Node) []*kong.Flag {
	if node == app.Node {
		return visibleFlags(app.Flags)
	}
	return append(commandFlags(app, node), app.HelpFlag)
}

// commandFlags returns the visible flags of a command and of the commands above it, but not the program's own.
func commandFlags(app *kong.Application, node *kong.Node) (flags []*kong.Flag) {
	for ; node != app.Node; node = node.Parent {
		flags = append(flags, visibleFlags(node.Flags)...)
	}
	return flags
}

func visibleFlags(flags []*kong.Flag) []*kong.Flag {
	return slices.DeleteFunc(slices.Clone(flags), func(flag *kong.Flag) bool { return flag.Hidden })
}

func flagOf(app *kong.Application, node *kong.Node, word string) *kong.Flag {
	for _, flag := range flagsOf(app, node) {
		if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
			return flag
		}
	}
	return nil
}

// values returns the values that a flag or an argument can have, if only some are allowed.
func values(prefix string, of *kong.Value) (all []Candidate) {
	for _, value := range of.EnumSlice() {
		if value != "" {
			all = append(all, Candidate{prefix + value, ""})
		}
	}
	return all
}
