package peers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// ErrMixedUp is of a volume with the data of another member.
var ErrMixedUp = errors.New("volumes were mixed up")

// named is what people know the member of that ID by; empty if the cluster has none.
func (c *Census) named(id uint64) string {
	if at := slices.IndexFunc(c.Members, func(m Member) bool { return uint64(m.ID) == id }); at >= 0 {
		return called(c.Members[at])
	}
	return ""
}

// former says why the data of a volume are not those that this member had last, as far as the list of members tells. Data of a
// time when this member alone had a vote would be a cluster by themselves.
func former(self Self, c *Census) error {
	known, count := c.Listing == Started, len(voters(c.Members))
	switch {
	case self.MemberID == 0 || strconv.FormatUint(self.ClusterID, 16) != c.Cluster || !known && c.Listing != Unlisted:
		return nil
	case known && self.MemberID != uint64(c.Own.ID) && c.named(self.MemberID) != "":
		return fmt.Errorf("they are those of %s, which is in the cluster beside this one: %w", c.named(self.MemberID), ErrMixedUp)
	case known && self.MemberID != uint64(c.Own.ID):
		return fmt.Errorf("they are of member %x, which was replaced by %s", self.MemberID, c.Own.ID)
	case self.Voters == 1 && (count > 1 || !known):
		return fmt.Errorf("they are of a time when this member alone had a vote; %d have one now", count)
	case !known && c.named(self.MemberID) == "":
		return fmt.Errorf("they are of member %x, which the cluster has no more", self.MemberID)
	}
	return nil
}
