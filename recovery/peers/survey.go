package peers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/internal/printable"
)

// A Listing is how the other members list this one.
type Listing string

// The listings. Only those that a quorum of equal answers supports lead to action.
const (
	Unknown  Listing = "unknown"  // no quorum answers, and no cluster beyond the configured one is known
	Claimed  Listing = "claimed"  // a cluster is known, without a quorum of equal answers
	Founding Listing = "founding" // no cluster is known, all members are here, and none has data
	Partial  Listing = "partial"  // no cluster is known, and none has data; some run already, as far as they know for the first time
	Gone     Listing = "gone"     // no cluster is known, all members are here, and the data of some are unusable
	Asking   Listing = "asking"   // no cluster is known, all members are here and ask for the same restore
	Expected Listing = "expected" // it has never started, in a cluster that is being founded with it
	Added    Listing = "added"    // it has never started, and was added to a running cluster
	Started  Listing = "started"  // it has run in the cluster
	Unlisted Listing = "unlisted" // the cluster does not list it
)

// A Member is a member of a cluster as another one lists it.
type Member = membership.Member

// Self describes the member that asks.
type Self struct {
	ClusterID, MemberID uint64 // from the volume; 0 if it has none
	Alone               bool   // by the volume, it is the only voting member
	Index               uint64 // of the last entry in its log
	Holds               Holds  // what the others are told while no etcd runs here
	Restore             string // ID of the restore that is requested here; empty if none is
	Brought             bool   // the store has what only the volume had, as far as possible
}

// A Call is what a member that runs no etcd reports.
type Call struct {
	Name    string `json:"name"`
	Process string `json:"process"` // made up by each process
	Holds   Holds  `json:"holds"`
	Cluster string `json:"cluster,omitempty"` // etcd's ID, hexadecimal, of the cluster that the data are of
	Restore string `json:"restore,omitempty"` // the id of the restore that is asked for there
	Brought bool   `json:"brought,omitempty"` // the store has what only its volume had, as far as it can be brought there
}

// Holds describes what a member has on its volume.
type Holds string

// The values.
const (
	Nothing  Holds = "nothing"
	Ruins    Holds = "ruins" // data that cannot be used
	Older    Holds = "older" // data that the store has more than
	Data     Holds = "data"
	Restores Holds = "restores" // data from a store, once that permits it
)

// A Survey is the result of asking the others.
type Survey struct {
	Listing Listing
	Cluster string // etcd's ID of the cluster, hexadecimal; empty without a quorum
	// ID is the cluster's ID in its store, as reported by members that run with one; empty if none does. Generation
	// belongs to it.
	ID         string
	Generation int
	Members    []Member // of the cluster, including this one
	Own        Member   // this member as they list it
	// Outdated says why the data on the volume are not the ones that this member had last; nil if nothing speaks
	// against them.
	Outdated error
	// InTheWay says what prevents this member from being replaced or added now; nil if nothing does.
	InTheWay error
	// Brought reports whether all others that run no etcd have uploaded what only their volumes had.
	Brought bool
	// Silent names the members that gave no answer, or one that prevents a decision, and why; nil if there are none.
	Silent error
	// Run is the number of others that run an etcd of the volume's cluster, Voters the number of its voting members
	// as they list them.
	Run, Voters int
	// Reach is the highest revision that a running member is known to have.
	Reach int64
	// NoQuorumElsewhere reports that the other members cannot be a quorum of the volume's cluster without this one,
	// because so many of them wait without its data that the silent ones are too few.
	NoQuorumElsewhere bool
	// Size is the largest size of a database that a running member reports, in bytes.
	Size int64
	// Older is the number of members that run no etcd and have data that the store has more than.
	Older int
}

// InitialCluster returns the members in the form of etcd's initial-cluster, for the member with a name.
func (c *Survey) InitialCluster(name string) string {
	var pairs []string
	for _, m := range c.Members {
		called := m.Name
		switch {
		case m.ID == c.Own.ID:
			called = name
		case called == "":
			called = m.ID.String()
		}
		for _, url := range m.PeerURLs {
			pairs = append(pairs, called+"="+url)
		}
	}
	return strings.Join(pairs, ",")
}

// Others returns the members of the cluster without this one.
func (c *Survey) Others() []Member {
	return slices.DeleteFunc(slices.Clone(c.Members), func(m Member) bool { return m.ID == c.Own.ID })
}

// An answer is what one member has reported.
type answer struct {
	name    string // from the configuration
	url     string // that was asked
	cluster string
	members []Member
}

// content returns the same text for equal answers.
func (a *answer) content() string {
	text, _ := json.Marshal(a.members) // decoded from JSON before
	return a.cluster + string(text)
}

// voter reports whether the member that answered has a vote, by its own list.
func (a *answer) voter() bool {
	return slices.ContainsFunc(a.members, func(m Member) bool { return !m.IsLearner && a.is(m) })
}

// is reports whether a member is the one that answered.
func (a *answer) is(m Member) bool { return m.Name == a.name || slices.Contains(m.PeerURLs, a.url) }

// decided returns the answer that a quorum of its own cluster has given, and the members that gave it; nil if there
// is none, or if two contradict each other.
func (p *Peers) decided(answers []*answer) (agreed *answer, by []*answer) {
	groups := map[string][]*answer{}
	for _, a := range answers {
		if a.voter() {
			groups[a.content()] = append(groups[a.content()], a)
		}
	}
	for _, group := range groups {
		if len(group) < p.enough(group[0].members) {
			continue
		}
		if agreed != nil {
			return nil, nil
		}
		agreed, by = group[0], group
	}
	return agreed, by
}

// enough returns how many equal answers are needed: a quorum or, if this member is one of two voters, the other one,
// which has everything that both have ever agreed on.
func (p *Peers) enough(members []Member) int {
	count := len(voters(members))
	if own, listed := p.own(members); listed && !own.IsLearner && count == 2 {
		return 1
	}
	return count/2 + 1
}

func voters(members []Member) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.IsLearner })
}

// own returns this member's entry in a list: the one with its name or, as a member that never started has no name
// there, with one of its peer URLs.
func (p *Peers) own(members []Member) (own Member, listed bool) {
	there := func(m Member) bool { return slices.ContainsFunc(m.PeerURLs, p.isOwnURL) }
	at := slices.IndexFunc(members, func(m Member) bool { return m.Name == p.name || m.Name == "" && there(m) })
	if at < 0 {
		at = slices.IndexFunc(members, there)
	}
	if at < 0 {
		return Member{}, false
	}
	return members[at], true
}

func (p *Peers) isOwnURL(url string) bool { return slices.Contains(p.urls, url) }

// judge makes a survey of answers.
func (p *Peers) judge(answers []*answer) (c Survey, by []*answer) {
	agreed, by := p.decided(answers)
	heard := map[Listing]bool{}
	for _, a := range answers {
		heard[p.listing(a)] = true
	}
	delete(heard, Expected)
	if agreed == nil {
		c.Listing = Unknown
		if len(heard) > 0 {
			c.Listing = Claimed
		}
		return c, nil
	}
	own, _ := p.own(agreed.members)
	c = Survey{Listing: p.listing(agreed), Cluster: agreed.cluster, Members: agreed.members, Own: own}
	if heard[Started] && c.Listing != Started || c.Listing == Expected && len(heard) > 0 {
		c.Listing = Claimed // a member that lists this one outweighs one that does not
	}
	return c, by
}

// listing returns how an answer lists this member.
func (p *Peers) listing(a *answer) Listing {
	own, listed := p.own(a.members)
	switch {
	case !listed:
		return Unlisted
	case started(own):
		return Started
	case uint64(own.ID) == p.founding:
		return Expected
	default:
		return Added
	}
}

// started reports whether a member has ever served: then it has client URLs.
func started(m Member) bool { return len(m.ClientURLs) > 0 }

// called returns the name of a member for users.
func called(m Member) string {
	switch {
	case m.Name != "":
		return m.Name
	case len(m.PeerURLs) > 0:
		return strings.Join(m.PeerURLs, ",")
	default:
		return m.ID.String()
	}
}

// unfinished names another member that is about to join; only one at a time may.
func (p *Peers) unfinished(c *Survey) error {
	for _, m := range c.Members {
		switch {
		case m.ID == c.Own.ID && c.Listing != Unlisted:
		case m.IsLearner:
			return fmt.Errorf("%s is a learner that has no vote yet, and members join one at a time; see that it catches up, or remove it with etcdctl member remove", called(m))
		case !started(m):
			return fmt.Errorf("%s was added and has not started yet, and members join one at a time; start it, or remove it with etcdctl member remove", called(m))
		}
	}
	return nil
}

// ErrMixedUp reports a volume with the data of another member.
var ErrMixedUp = errors.New("volumes were mixed up")

// named returns the name for users of the member with an ID; empty if the cluster has none.
func (c *Survey) named(id uint64) string {
	if at := slices.IndexFunc(c.Members, func(m Member) bool { return uint64(m.ID) == id }); at >= 0 {
		return called(c.Members[at])
	}
	return ""
}

// former returns why the data of a volume are not the ones that this member had last, as far as the list of members
// shows. Data from a time when this member was the only voter would form a cluster of their own.
func former(self Self, c *Survey) error {
	known, count := c.Listing == Started || c.Listing == Added, len(voters(c.Members))
	switch {
	case self.MemberID == 0 || strconv.FormatUint(self.ClusterID, 16) != c.Cluster || !known && c.Listing != Unlisted:
		return nil
	case known && self.MemberID != uint64(c.Own.ID) && c.named(self.MemberID) != "":
		return fmt.Errorf("they are those of %s, which is in the cluster beside this one: %w", c.named(self.MemberID), ErrMixedUp)
	case known && self.MemberID != uint64(c.Own.ID):
		return fmt.Errorf("they are of member %x, which was replaced by %s", self.MemberID, c.Own.ID)
	case self.Alone && (count > 1 || !known):
		return fmt.Errorf("they are of a time when this member alone had a vote; %d have one now", count)
	case !known && c.named(self.MemberID) == "":
		return fmt.Errorf("they are of member %x, which the cluster has no more", self.MemberID)
	}
	return nil
}

// lacking describes what the answers lack for a decision; nil if every other member has reported its state and
// nothing prevents one.
func (p *Peers) lacking(self Self, c *Survey, answers []*answer, calls []Call) error {
	var words []string
	switch {
	case c.Listing == Claimed:
		words = append(words, p.minority(answers))
	case self.Restore != "" || c.Listing == Unknown:
		for _, a := range answers {
			words = append(words, a.name+" runs")
		}
	}
	for _, call := range calls {
		if what := call.words(self, c.Listing); what != "" {
			words = append(words, call.Name+" "+what)
		}
	}
	return sentence(words)
}

// minority describes why answers are not those of a quorum.
func (p *Peers) minority(answers []*answer) string {
	var names []string
	for _, a := range answers {
		names = append(names, a.name)
		if a.content() != answers[0].content() {
			return "what the others say of the cluster's members is not the same"
		}
	}
	members := answers[0].members
	return fmt.Sprintf("of %d voting members only %s runs, and %d have to", len(voters(members)), strings.Join(names, " and "), p.enough(members))
}

// words describes what in a call prevents a decision.
func (c Call) words(self Self, listing Listing) string {
	switch {
	case c.Holds == Restores && self.Holds != Restores:
		return "is about to restore the backup"
	case self.Restore != "" && c.Restore != self.Restore:
		return "does not ask for the same restore"
	case self.Restore != "":
		return ""
	case c.Holds == Data:
		return "has data, and runs no etcd yet"
	case listing == Claimed:
		return "runs no etcd, and has no data of use"
	}
	return ""
}

// sentence joins clauses to an error; nil if there are none.
func sentence(clauses []string) error {
	if len(clauses) == 0 {
		return nil
	}
	return errors.New(strings.Join(clauses, "; "))
}

// both joins two errors to one sentence; either may be nil.
func both(first, second error) error {
	if first != nil && second != nil {
		return fmt.Errorf("%w; %w", first, second)
	}
	return cmp.Or(first, second)
}

// roll returns the listing if no etcd reports more than a cluster that is being founded. A cluster is founded or
// restored only when every member has reported that it has no usable data: a missing one may have what all others
// lack.
func (p *Peers) roll(self Self, founding []*answer, calls []Call) Listing {
	restores := func(call Call) bool { return call.Holds == Restores && self.Holds != Restores } // the store lets one be the first
	if self.Restore != "" {
		differs := func(call Call) bool { return call.Restore != self.Restore || restores(call) }
		if len(calls) < len(p.others) || slices.ContainsFunc(calls, differs) {
			return Unknown
		}
		return Asking
	}
	lacks, all := 1+len(founding), 1+len(p.others)
	lost := self.Holds != Nothing
	for _, call := range calls {
		if restores(call) || !slices.Contains([]Holds{Nothing, Ruins, Older, Restores}, call.Holds) {
			return Unknown
		}
		lacks, lost = lacks+1, lost || call.Holds != Nothing
	}
	switch {
	case self.Holds == Data || lacks < all || lost && len(founding) > 0:
		return Unknown
	case lost:
		return Gone
	case len(founding) > 0:
		return Partial
	default:
		return Founding
	}
}

const (
	mostMembers = 100 // in an answer; etcd recommends at most seven
	longestName = 256 // bytes of a name or URL in an answer; a DNS name has at most 253
	longestWord = 300 // bytes that are quoted from another process
)

// plain returns text from another process as one line of readable length.
func plain(word string) string {
	word = printable.Line(word)
	if len(word) > longestWord {
		word = strings.ToValidUTF8(word[:longestWord], "") + "…"
	}
	return word
}

// said is an error whose text may come from another process.
type said struct{ error }

func (s said) Error() string { return plain(s.error.Error()) }
func (s said) Unwrap() error { return s.error }

// odd returns why a list of members must not be shown or used; nil if it may. Names and URLs go into logs, published
// documents and etcd's configuration.
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
