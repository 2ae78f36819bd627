package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/internal/printable"
)

// Membership describes how the other members list this member.
type Membership string

// Memberships. A membership change requires a value backed by a quorum of equal responses.
const (
	Unknown       Membership = "unknown"                  // no quorum, and no cluster is known except the configured one
	NoQuorum      Membership = "no quorum"                // a cluster is known, but there is no quorum of equal responses
	AllEmpty      Membership = "all volumes empty"        // no cluster is known, and all members respond and have no data
	SomeStarted   Membership = "some members started"     // no cluster is known, no member has data, and some members are already running for the first time
	AllLost       Membership = "all data lost"            // no cluster is known, all members respond, and some have unusable data
	RestoreAgreed Membership = "restore requested by all" // no cluster is known, and all members respond and request the same restore
	Expected      Membership = "this member expected"     // this member has never started and is part of a new cluster
	Added         Membership = "this member added"        // this member has never started and was added to a running cluster
	Started       Membership = "this member started"      // this member has run in the cluster
	Unlisted      Membership = "this member not listed"   // the cluster does not list this member
)

// HasQuorum reports whether a quorum of the other members is running.
func (m Membership) HasQuorum() bool { return m == Started || m == Added || m == Unlisted }

// Member is a member of a cluster as another member lists it.
type Member = membership.Member

// Self describes the querying member.
type Self struct {
	datadir.Position // position of the data on the volume; zero if there is none

	Volume   Volume // reported to the other members while etcd is not running
	Restore  string // ID of the requested restore; empty if there is none
	Uploaded bool   // whether data that only this volume had was uploaded to the store, as far as possible
}

// Status is reported by a member that is not running etcd.
type Status struct {
	Name     string `json:"name"`
	Process  string `json:"process"` // random ID of the process
	Volume   Volume `json:"holds"`
	Cluster  string `json:"cluster,omitempty"` // etcd's ID of the cluster that the data belongs to, in hexadecimal
	Restore  string `json:"restore,omitempty"` // ID of the restore requested on that member
	Uploaded bool   `json:"brought,omitempty"` // whether data that only that volume had was uploaded
}

// Volume describes the data on a member's volume.
type Volume string

// Data on a volume.
const (
	Nothing  Volume = "nothing"
	Unusable Volume = "unusable" // etcd cannot use the data
	Older    Volume = "older"    // data that is older than the data in the store
	Data     Volume = "data"
	Restores Volume = "restores" // data that is about to be restored from the store
)

// Survey is the result of querying the other members.
type Survey struct {
	Membership Membership
	Cluster    string // etcd's cluster ID in hexadecimal; empty without a quorum
	// ID and Generation identify the data in the store, according to the running members that have a store. ID is
	// empty if there are no such members.
	ID         string
	Generation int
	Members    []Member // members of the cluster, including this one
	Own        Member   // this member as the other members list it
	// Outdated is the reason why the data on the volume is not the latest data of this member, or nil if nothing
	// suggests that.
	Outdated error
	// Blocked is the reason why this member cannot be replaced or added at the moment, or nil.
	Blocked error
	// Uploaded reports whether all other members that are not running etcd have uploaded the data that only their
	// volumes had.
	Uploaded bool
	// Missing describes which members did not respond or sent a response that prevents a decision. Missing is nil if
	// there are no such members.
	Missing error
	// Running is the number of other members that run etcd in the volume's cluster. Voters is the highest number of
	// voters that a running member of the volume's cluster reports.
	Running, Voters int
	// Revision is the highest known revision of a running member.
	Revision int64
	// NoQuorumElsewhere reports that the other members cannot form a quorum of the volume's cluster without this
	// member, because too many of them are waiting without data.
	NoQuorumElsewhere bool
	// Size is the size in bytes of the largest database that a running member reports.
	Size int64
	// Older is the number of members that are not running etcd and have older data than the store.
	Older int
}

// InitialCluster returns the members in the format of etcd's initial-cluster. This member gets the name ownName.
func (s *Survey) InitialCluster(ownName string) string {
	var pairs []string
	for _, m := range s.Members {
		name := m.Name
		switch {
		case m.ID == s.Own.ID:
			name = ownName
		case name == "":
			name = m.ID.String()
		}
		for _, url := range m.PeerURLs {
			pairs = append(pairs, name+"="+url)
		}
	}
	return strings.Join(pairs, ",")
}

// Others returns the members of the cluster except this one.
func (s *Survey) Others() []Member {
	return slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return m.ID == s.Own.ID })
}

// response is the member list that a member reported.
type response struct {
	name    string // name of the member in the configuration
	url     string // requested URL
	cluster string
	members []Member
}

// content returns the cluster and the members as a string, by which responses can be compared.
func (r *response) content() string {
	text, _ := json.Marshal(r.members) // cannot fail: the members were decoded from JSON
	return r.cluster + string(text)
}

// own returns the member that sent the response, or the zero value if its own list does not include it.
func (r *response) own() (own Member) {
	for _, m := range r.members {
		if m.Name == r.name || slices.Contains(m.PeerURLs, r.url) {
			return m
		}
	}
	return own
}

// findQuorum returns the response on which a quorum of its own cluster agrees. The result is nil if there is no such
// response or if two of them contradict each other.
func (p *Peers) findQuorum(responses []*response) (agreed *response) {
	votes := map[string]int{}
	for _, r := range responses {
		if own := r.own(); own.ID == 0 || own.IsLearner {
			continue
		}
		votes[r.content()]++
		if votes[r.content()] != p.requiredVotes(r.members) {
			continue
		}
		if agreed != nil {
			return nil
		}
		agreed = r
	}
	return agreed
}

// requiredVotes returns the number of equal responses that are required: a quorum or, if this member is one of two
// voters, only the other voter, which has everything that both have agreed on.
func (p *Peers) requiredVotes(members []Member) int {
	count := len(voters(members))
	if own, listed := p.findSelf(members); listed && !own.IsLearner && count == 2 {
		return 1
	}
	return count/2 + 1
}

func voters(members []Member) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.IsLearner })
}

// findSelf finds this member in a list by its name or, because a member has no name before its first start, by one
// of its peer URLs.
func (p *Peers) findSelf(members []Member) (own Member, listed bool) {
	hasOwnURL := func(m Member) bool { return slices.ContainsFunc(m.PeerURLs, p.isSelfURL) }
	i := slices.IndexFunc(members, func(m Member) bool { return m.Name == p.config.Name || m.Name == "" && hasOwnURL(m) })
	if i < 0 {
		i = slices.IndexFunc(members, hasOwnURL)
	}
	if i < 0 {
		return Member{}, false
	}
	return members[i], true
}

func (p *Peers) isSelfURL(url string) bool { return slices.Contains(p.urls, url) }

// evaluate derives a survey from responses.
func (p *Peers) evaluate(responses []*response) Survey {
	reported := map[Membership]bool{}
	for _, r := range responses {
		reported[p.membershipIn(r)] = true
	}
	delete(reported, Expected)
	agreed := p.findQuorum(responses)
	switch {
	case agreed == nil && len(reported) > 0:
		return Survey{Membership: NoQuorum}
	case agreed == nil:
		return Survey{Membership: Unknown}
	}
	own, _ := p.findSelf(agreed.members)
	s := Survey{Membership: p.membershipIn(agreed), Cluster: agreed.cluster, Members: agreed.members, Own: own}
	if reported[Started] && s.Membership != Started || s.Membership == Expected && len(reported) > 0 {
		s.Membership = NoQuorum // a response that lists this member takes precedence over a response that does not
	}
	return s
}

// membershipIn returns how a response lists this member.
func (p *Peers) membershipIn(r *response) Membership {
	own, listed := p.findSelf(r.members)
	switch {
	case !listed:
		return Unlisted
	case isStarted(own):
		return Started
	case uint64(own.ID) == p.initialID:
		return Expected
	default:
		return Added
	}
}

// isStarted reports whether a member has ever started. On its first start, a member registers its client URLs.
func isStarted(m Member) bool { return len(m.ClientURLs) > 0 }

// nameOf returns a name of the member to show to users.
func nameOf(m Member) string {
	switch {
	case m.Name != "":
		return m.Name
	case len(m.PeerURLs) > 0:
		return strings.Join(m.PeerURLs, ",")
	default:
		return m.ID.String()
	}
}

// checkPending returns an error if another member is joining. Members must join one at a time.
func checkPending(s *Survey) error {
	for _, m := range s.Members {
		switch {
		case m.ID == s.Own.ID && s.Membership != Unlisted:
		case m.IsLearner:
			return fmt.Errorf("%s is still a learner, and members join one at a time; make sure that it catches up, or remove it with \"etcdctl member remove\"", nameOf(m))
		case !isStarted(m):
			return fmt.Errorf("%s was added but has not started yet, and members join one at a time; start it or remove it with \"etcdctl member remove\"", nameOf(m))
		}
	}
	return nil
}

// ErrMixedUp reports that the volume has the data of another member.
var ErrMixedUp = errors.New("volumes were mixed up")

// checkIdentity returns an error if, according to the member list, the data on the volume is not the latest data of
// this member. For example, data that lists this member as the only voter would make etcd form a separate cluster.
func checkIdentity(self Self, s *Survey) error {
	listed, count := s.Membership == Started || s.Membership == Added, len(voters(s.Members))
	if self.MemberID == 0 || formatID(self.ClusterID) != s.Cluster || !listed && s.Membership != Unlisted {
		return nil
	}
	owner := ""
	if i := slices.IndexFunc(s.Members, func(m Member) bool { return uint64(m.ID) == self.MemberID }); i >= 0 {
		owner = nameOf(s.Members[i])
	}
	switch {
	case listed && self.MemberID != uint64(s.Own.ID) && owner != "":
		return fmt.Errorf("the data belongs to %s, another member of the cluster: %w", owner, ErrMixedUp)
	case listed && self.MemberID != uint64(s.Own.ID):
		return fmt.Errorf("the data belongs to member %x, which was replaced by %s", self.MemberID, s.Own.ID)
	case self.IsOnlyVoter() && (count > 1 || !listed):
		return fmt.Errorf("the data is outdated: it lists this member as the only voter, but the cluster has %d voting members", count)
	case !listed && owner == "":
		return fmt.Errorf("the data belongs to member %x, which is no longer in the cluster", self.MemberID)
	}
	return nil
}

// describeMissing describes what prevents a decision. The result is empty if all other members have reported their
// states and nothing prevents a decision.
func (p *Peers) describeMissing(self Self, s *Survey, responses []*response, waiting []Status) (clauses []string) {
	switch {
	case s.Membership == NoQuorum:
		clauses = append(clauses, p.describeQuorum(responses))
	case self.Restore != "" || s.Membership == Unknown:
		for _, r := range responses {
			clauses = append(clauses, r.name+" is running")
		}
	}
	for _, status := range waiting {
		if clause := status.describe(self, s.Membership); clause != "" {
			clauses = append(clauses, status.Name+" "+clause)
		}
	}
	return clauses
}

// describeQuorum describes why the responses do not form a quorum.
func (p *Peers) describeQuorum(responses []*response) string {
	var names []string
	for _, r := range responses {
		names = append(names, r.name)
		if r.content() != responses[0].content() {
			return "the other members disagree on the member list"
		}
	}
	members := responses[0].members
	return fmt.Sprintf("of %d voting members, only %s responded, but %d are needed", len(voters(members)), strings.Join(names, " and "), p.requiredVotes(members))
}

// describe returns the reason why the status prevents a decision, or "".
func (s Status) describe(self Self, membership Membership) string {
	switch {
	case s.Volume == Restores && self.Volume != Restores:
		return "is about to restore the backup"
	case self.Restore != "" && s.Restore != self.Restore:
		return "has not requested the same restore"
	case self.Restore != "":
		return ""
	case s.Volume == Data:
		return "has data but is not running etcd yet"
	case membership == NoQuorum:
		return "is not running etcd and has no usable data"
	}
	return ""
}

// joinErrors joins clauses into a single error, or returns nil if there are none.
func joinErrors(clauses []string) error {
	if len(clauses) == 0 {
		return nil
	}
	return errors.New(strings.Join(clauses, "; "))
}

// withoutCluster returns the membership if no running member reports a cluster, except for the new cluster of members
// that are already running for the first time (founding). A cluster is created or restored only after every member has
// reported that it has no usable data, because a missing member may have the data that all others lack.
func (p *Peers) withoutCluster(self Self, founding []*response, waiting []Status) Membership {
	prevents := func(status Status) bool {
		if status.Volume == Restores { // several members may intend to restore, because only one of them can claim the store
			return self.Volume != Restores
		}
		return self.Restore == "" && !slices.Contains([]Volume{Nothing, Unusable, Older}, status.Volume)
	}
	if self.Restore != "" {
		differs := func(status Status) bool { return status.Restore != self.Restore || prevents(status) }
		if len(waiting) < len(p.others) || slices.ContainsFunc(waiting, differs) {
			return Unknown
		}
		return RestoreAgreed
	}
	lost := self.Volume != Nothing || slices.ContainsFunc(waiting, func(status Status) bool { return status.Volume != Nothing })
	switch {
	case self.Volume == Data, len(waiting)+len(founding) < len(p.others), slices.ContainsFunc(waiting, prevents), lost && len(founding) > 0:
		return Unknown
	case lost:
		return AllLost
	case len(founding) > 0:
		return SomeStarted
	default:
		return AllEmpty
	}
}

const (
	maxMembers = 100 // maximum number of members in a response; etcd recommends at most seven
	maxName    = 256 // maximum length of a name or URL in a response, in bytes; a DNS name has at most 253 characters
	maxQuote   = 300 // maximum number of bytes quoted from another process
)

// shorten returns text from another process as a single line of limited length.
func shorten(text string) string {
	text = printable.Line(text)
	if len(text) > maxQuote {
		text = strings.ToValidUTF8(text[:maxQuote], "") + "…"
	}
	return text
}

// remoteError is an error with a message that may come from another process.
type remoteError struct{ error }

func (e remoteError) Error() string { return shorten(e.error.Error()) }
func (e remoteError) Unwrap() error { return e.error }

// validate returns an error if a member list is not safe to use. The names and URLs in the list appear in logs,
// published documents and etcd's configuration.
func validate(members []Member) error {
	if len(members) == 0 || len(members) > maxMembers {
		return fmt.Errorf("invalid number of members in the response: %d (must be 1 to %d)", len(members), maxMembers)
	}
	for _, m := range members {
		if len(m.Name) > maxName || strings.ContainsFunc(m.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("invalid member name: %s (must be printable and have at most %d bytes)", shorten(m.Name), maxName)
		}
		for _, raw := range slices.Concat(m.PeerURLs, m.ClientURLs) {
			if parsed, err := url.Parse(raw); err != nil || len(raw) > maxName || parsed.Host == "" || !strings.HasPrefix(parsed.Scheme, "http") && !strings.HasPrefix(parsed.Scheme, "unix") {
				return fmt.Errorf("invalid member URL: %s (must be an http, https or unix URL of at most %d bytes)", shorten(raw), maxName)
			}
		}
	}
	return nil
}
