package peers

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"etcd-wrapper/internal/printable"
)

const (
	mostMembers = 100 // in an answer; etcd advises against more than seven
	longestName = 256 // bytes of a name or a URL in an answer; a DNS name has 253 at the most
	longestWord = 300 // bytes that are quoted of what a stranger has said
)

// plain is a stranger's word as people are told of it: one line, of a length that one reads.
func plain(word string) string {
	word = printable.Line(word)
	if len(word) > longestWord {
		word = strings.ToValidUTF8(word[:longestWord], "") + "…"
	}
	return word
}

// said is an error whose text may be a stranger's.
type said struct{ error }

func (s said) Error() string { return plain(s.error.Error()) }
func (s said) Unwrap() error { return s.error }

// quoted bounds the text of an error; nil stays nil.
func quoted(err error) error {
	if err == nil {
		return nil
	}
	return said{err}
}

// odd says why nobody can be told of members; nil if nothing speaks against it. Their names and URLs go into logs, into what is
// published and into etcd's configuration.
func odd(members []Member) error {
	if len(members) == 0 || len(members) > mostMembers {
		return fmt.Errorf("a cluster of %d members", len(members))
	}
	for _, m := range members {
		if len(m.Name) > longestName || strings.ContainsFunc(m.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("a member with a name that is none: %s", plain(m.Name))
		}
		for _, at := range slices.Concat(m.PeerURLs, m.ClientURLs) {
			if parsed, err := url.Parse(at); err != nil || len(at) > longestName || parsed.Host == "" || !strings.HasPrefix(parsed.Scheme, "http") && !strings.HasPrefix(parsed.Scheme, "unix") {
				return fmt.Errorf("a member with a URL that is none: %s", plain(at))
			}
		}
	}
	return nil
}
