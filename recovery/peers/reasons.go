package peers

import (
	"errors"
	"fmt"
	"strings"
)

// lacking says in words what the answers lack for a decision; nil if every other member has told how it is, and none of that
// is in the way.
func (p *Peers) lacking(self Self, c *Census, answers []*answer, calls []Call) error {
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
	if len(words) == 0 {
		return nil
	}
	return errors.New(strings.Join(words, "; "))
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
