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

// Listing is how the other members have this one in their list.
type Listing string

// The listings. Only those that a quorum of equal answers stands behind are acted upon.
const (
	Unknown  Listing = "unknown"  // no quorum answers, and nobody knows of a cluster that was more than configured
	Claimed  Listing = "claimed"  // somebody does, and no quorum of equal answers stands behind it
	Founding Listing = "founding" // no cluster is known of, all are here, and nobody has data
	Partial  Listing = "partial"  // no cluster is known of, and nobody has data; some run already, as far as they know for the first time
	Gone     Listing = "gone"     // no cluster is known of, all are here, and what some have is of no use
	Asking   Listing = "asking"   // no cluster is known of, all are here and ask for the same restore
	Expected Listing = "expected" // it has never started, in a cluster that is being founded with it
	Added    Listing = "added"    // it has never started, and was added to a cluster that runs
	Started  Listing = "started"  // it was there before
	Unlisted Listing = "unlisted" // the cluster does not have it
)

// Member is one member of a cluster, as another one tells of it.
type Member = membership.Member

// Self is the member that asks, with what its volume tells of it.
type Self struct {
	ClusterID, MemberID uint64 // the volume's; 0 if it has none
	Alone               bool   // by its volume this member alone has a vote
	Index               uint64 // of the last entry in its log
	Holds               Holds  // what is told to others while no etcd runs here
	Restore             string // the id of the restore that is asked for here; empty if none is
	Brought             bool   // the store has what only the volume had, as far as it can be brought there
}

// Call is what a member that does not run yet says of itself.
type Call struct {
	Name    string `json:"name"`
	Process string `json:"process"` // made up by each process
	Holds   Holds  `json:"holds"`
	Cluster string `json:"cluster,omitempty"` // etcd's ID, hexadecimal, of the cluster that the data are of
	Restore string `json:"restore,omitempty"` // the id of the restore that is asked for there
	Brought bool   `json:"brought,omitempty"` // the store has what only its volume had, as far as it can be brought there
}

// Holds is what a member has on its volume.
type Holds string

// What there can be.
const (
	Nothing  Holds = "nothing"
	Ruins    Holds = "ruins" // data that cannot be used
	Older    Holds = "older" // data that a store has more than
	Data     Holds = "data"
	Restores Holds = "restores" // data from a store, as soon as that grants it
)

// Survey is what the others have answered.
type Survey struct {
	Listing Listing
	Cluster string // etcd's id of the cluster, hexadecimal; empty without a quorum
	// ID is the id that the cluster has in its store, as those tell that run it with one; empty if none does. Generation goes with it.
	ID         string
	Generation int
	Members    []Member // of the cluster, this one included
	Own        Member   // this one, as they have it
	// Outdated says why the data on the volume are not those that this member had last; nil if nothing speaks against them.
	Outdated error
	// InTheWay says what keeps this member from being replaced, or added, now; nil if nothing does.
	InTheWay error
	// Brought says that of the others that run no etcd all have brought into the store what only their volumes had.
	Brought bool
	// Silent says who gave no answer, or one that is in the way of a decision, and why; nil if nobody did.
	Silent error
	// Run is how many of the others run an etcd of the volume's cluster, and Voters how many voting members that has, as they tell.
	Run, Voters int
	// Reach is the highest revision that one of those that run is known to have.
	Reach int64
	// NoQuorumElsewhere reports that the other members cannot be a quorum of the volume's cluster without this one: so many of them wait
	// without data of it that the silent ones are too few.
	NoQuorumElsewhere bool
	// Size is how many bytes the largest database has of which one of those that run tells.
	Size int64
	// Older is how many run none, and have data that a store has more than.
	Older int
}

// InitialCluster is the list of members as etcd's configuration has it, for the member of that name.
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

// Others are the members of the cluster but this one.
func (c *Survey) Others() []Member {
	return slices.DeleteFunc(slices.Clone(c.Members), func(m Member) bool { return m.ID == c.Own.ID })
}

// answer is what one member has told.
type answer struct {
	name    string // that it is configured with
	url     string // where it was asked
	cluster string
	members []Member
}

// content is the same for answers that are the same.
func (a *answer) content() string {
	text, _ := json.Marshal(a.members) // it was made of JSON
	return a.cluster + string(text)
}

// voter tells whether the one that answered has a vote, by its own list.
func (a *answer) voter() bool {
	return slices.ContainsFunc(a.members, func(m Member) bool { return !m.IsLearner && a.is(m) })
}

// is tells whether the member is the one that answered.
func (a *answer) is(m Member) bool { return m.Name == a.name || slices.Contains(m.PeerURLs, a.url) }

// decided is the answer that a quorum of the cluster that it tells of has given, and who gave it; nil if there is none, or
// if two contradict each other.
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

// enough is how many have to say the same: a quorum or, where this member is one of two voters, the other one. That one has
// everything that both ever agreed on.
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

// own is this member's entry in a list: the one that has its name or, as a member that never started has told none, one of its
// peer URLs.
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
		c.Listing = Claimed // who has forgotten this member is not believed against one who has not
	}
	return c, by
}

// listing is how one answer has this member.
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

// started tells whether a member has ever served: it tells its client URLs then.
func started(m Member) bool { return len(m.ClientURLs) > 0 }

// called is what people know a member by.
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

// unfinished names a member, other than this one, that is about to join; only one at a time may.
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

// ErrMixedUp is of a volume with the data of another member.
var ErrMixedUp = errors.New("volumes were mixed up")

// named is what people know the member of that ID by; empty if the cluster has none.
func (c *Survey) named(id uint64) string {
	if at := slices.IndexFunc(c.Members, func(m Member) bool { return uint64(m.ID) == id }); at >= 0 {
		return called(c.Members[at])
	}
	return ""
}

// former says why the data of a volume are not those that this member had last, as far as the list of members tells. Data of a
// time when this member alone had a vote would be a cluster by themselves.
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

// lacking says in words what the answers lack for a decision; nil if every other member has told how it is, and none of that
// is in the way.
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

// minority says why answers are not those of a quorum.
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

// words say what there is in a call that is in the way of a decision.
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

// sentence is an error of several clauses; nil if there are none.
func sentence(clauses []string) error {
	if len(clauses) == 0 {
		return nil
	}
	return errors.New(strings.Join(clauses, "; "))
}

// both are two errors in one sentence; either may be nil.
func both(first, second error) error {
	if first != nil && second != nil {
		return fmt.Errorf("%w; %w", first, second)
	}
	return cmp.Or(first, second)
}

// roll is what a survey comes to, where no etcd tells of more than a cluster that is being founded. A cluster is begun, or
// restored, when every member has said that it has no data of use: one that has not may have what all others lack.
func (p *Peers) roll(self Self, founding []*answer, calls []Call) Listing {
	restores := func(call Call) bool { return call.Holds == Restores && self.Holds != Restores } // the store has one be the first
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
	mostMembers = 100 // in an answer; etcd advises against more than seven
	longestName = 256 // bytes of a name or a URL in an answer; a DNS name has 253 at the most
	longestWord = 300 // bytes that are quoted of what another process has said
)

// plain is what another process has said, as people are told of it: one line, of a length that one reads.
func plain(word string) string {
	word = printable.Line(word)
	if len(word) > longestWord {
		word = strings.ToValidUTF8(word[:longestWord], "") + "…"
	}
	return word
}

// said is an error whose text may be another process's.
type said struct{ error }

func (s said) Error() string { return plain(s.error.Error()) }
func (s said) Unwrap() error { return s.error }

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
