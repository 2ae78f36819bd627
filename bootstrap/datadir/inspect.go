package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// Identity is who the configuration says that the member is.
type Identity struct {
	Name           string
	PeerURLs       []string // that it advertises
	InitialCluster string   // as etcd's configuration has it: name=URL, separated by commas
}

// Inspect refuses what etcd would take without a word, and serve with less than was acknowledged, or under a wrong name.
// It is for the moment before etcd opens the directory, whoever has validated it. A member that was never born is moved
// out of the way. What can't be read is left to etcd, which says why. What etcd puts up with, and a person should know of,
// is warned of.
func (f *Findings) Inspect(configured Identity, log zerolog.Logger) error {
	for _, warning := range f.warnings {
		log.Warn().Msg(warning)
	}
	if err := f.inspect(configured, log); err != nil {
		return fmt.Errorf("%w (a validation that called the data valid, the sidecar's too, has not looked at this)", err)
	}
	return nil
}

func (f *Findings) inspect(configured Identity, log zerolog.Logger) error {
	if moved, err := f.settleVoteless(log); err != nil || moved {
		return err
	}
	if err := refuseLostRestore(f.member); err != nil {
		return err
	}
	if err := refuseForeign(f.member, f.contents); err != nil {
		return err
	}
	if err := f.refuseShort(); err != nil {
		return err
	}
	return f.refuseStranger(configured, log)
}

// unbornPrefix begins the name that an unborn member's directory is set aside under.
const unbornPrefix = "member.unborn-"

// errVoteless is what a log is refused with that was lost, or cut off at its beginning.
var errVoteless = errors.New("it was lost, cut off or damaged, or is of another database")

// settleVoteless deals with a log that names nobody who has a vote. etcd would open it and wait for ever to be elected;
// without any log it would begin a new one, and drop what is written until that is as long as the one before. An unborn
// member's directory is moved out of the way, so that etcd starts afresh. Nothing is deleted. Otherwise the error says
// what was lost.
func (f *Findings) settleVoteless(log zerolog.Logger) (moved bool, err error) {
	if f.wal.unreadable() != nil || !f.voteless() {
		return false, nil
	}
	empty, missing := f.contentsErr == nil && f.contents.empty(), errors.Is(f.contentsErr, fs.ErrNotExist)
	switch {
	case len(f.segments()) == 0 && (empty || missing):
		return false, nil // a first start
	case empty && f.hasLogElsewhere():
		return false, nil // moving the directory would leave the log behind
	case empty:
		return true, setAside(f.member, log)
	case f.contentsErr == nil || missing:
		return false, lostLog.because(f.wal.path, errVoteless)
	default:
		return false, nil // etcd says what is wrong with the database
	}
}

func setAside(m *member, log zerolog.Logger) error {
	aside := filepath.Join(m.root.path, unbornPrefix+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(m.dir.path, aside); err != nil {
		return fmt.Errorf("cannot set a member that was never born aside: %w", err)
	}
	log.Warn().Str("moved_to", aside).Msg("etcd was killed before it had stored anything; it starts afresh")
	return nil
}

// refuseLostRestore is an error if the database is missing or unused, and the log goes on from one that was restored.
// etcd would fill a new database from the log, with nothing of what the backup held.
func refuseLostRestore(m *member) error {
	segments := m.segments()
	if len(segments) == 0 || segments[0] != firstSegment || !unused(m.database) || !goesOn(m.segment(firstSegment)) {
		return nil
	}
	return lostRestore.because(m.wal.path, m.database)
}

// unused says that there is no database, or one that etcd would fill from the first entry on. One that can't be read is
// another's concern.
func unused(database string) bool {
	if file, err := statDatabase(database); err != nil || file == nil || file.Size() == 0 {
		return err == nil
	}
	var found contents
	err := readDatabase(database, func(tx *bolt.Tx) (err error) {
		found, err = readContents(tx)
		return err
	})
	return errors.Is(err, fs.ErrNotExist) || err == nil && found.applied == 0 && found.keyless
}

// refuseForeign is an error if the database is of another cluster than the log: one of them was put back, copied or mounted
// without the other. etcd would bring what the log has into that database, and die of a member that it does not know. One that
// knows itself need not be asked any further. What can't be read is another's concern.
func refuseForeign(m *member, found contents) error {
	identity, err := m.identity()
	if err != nil || identity.NodeID == 0 || len(found.members) == 0 || found.knows(identity.NodeID) {
		return nil //nolint:nilerr // see above
	}
	named, err := m.named()
	if err != nil || len(named) == 0 || slices.ContainsFunc(named, found.knows) {
		return nil //nolint:nilerr // see above
	}
	return foreignDatabase.because(m.database, m.wal.path)
}

// refuseShort is an error if the database was cut off, or if the disk proves that the log was: etcd mends a damaged log
// by cutting it off, and serves without what was acknowledged behind the damage. What can't be read is left to etcd, which
// says why.
func (f *Findings) refuseShort() error {
	if errors.Is(f.contentsErr, errCutOff) {
		return cutOff.because(f.database, f.contentsErr)
	}
	if tail := f.tail(); tail != nil && f.contentsErr == nil {
		return f.contents.refuseTail(f.member, tail)
	}
	return nil
}

// newestSegment is the path of the last segment.
func (m *member) newestSegment() string {
	segments := m.segments()
	return m.segment(segments[len(segments)-1])
}

// refuseTail is an error if the log's tail proves that etcd would drop what was acknowledged, or ends before the database.
//
// In the second case a member that is alone would drop what is proposed until the log is as long again; it has been
// damaged, because such a member applies an entry only after its log was flushed. Of several members it need not be
// damage. A follower of etcd 3.6 hands an entry that it learns of together with its commitment to the database while its
// log is still being written (raftNode.start; etcd 3.5.5 and later wait). After a power loss at the right moment its
// database is ahead. Such a member has not acknowledged what its log lacks and would do no harm. But its disk looks just
// as after damage, and then it has acknowledged to a leader what it does not have any more, and would help to elect one
// that does not have it either. So both are refused, and have the same way out. That loses neither data nor the
// quorum: an entry is committed because a majority of logs has it already, so that only a minority can be without.
func (c contents) refuseTail(m *member, tail *history) error {
	switch {
	case tail.breach.proven(c.single36()):
		return lostTail.because(m.newestSegment(), tail.breach.at, tail.breach.last, tail.breach.commitment(), c.applied)
	case tail.last < c.applied && c.voters() > 1:
		return shortFollower.because(m.wal.path, tail.last, len(c.members), c.applied)
	case tail.last < c.applied:
		return shortLog.because(m.wal.path, tail.last, c.applied)
	}
	return nil
}

// refuseStranger is an error if the data directory is that of another member of this cluster: volumes were mixed up. etcd
// would take that member's identity, which then is there twice. A directory of a member that is not known here is warned
// of only: whoever restores one may have given it any name. What can't be read is left to etcd, which says why.
func (f *Findings) refuseStranger(configured Identity, log zerolog.Logger) error {
	owner, err := f.owner()
	if err != nil || owner.Name == "" || owner.Name == configured.Name {
		return nil //nolint:nilerr // see above
	}
	here := configured.PeerURLs
	if slices.ContainsFunc(owner.PeerURLs, func(url string) bool { return slices.Contains(here, url) }) {
		return nil
	}
	cluster, err := types.NewURLsMap(configured.InitialCluster)
	if _, known := cluster[owner.Name]; err == nil && known {
		return otherMember.because(f.root.path, owner.Name, owner.PeerURLs, configured.Name, here)
	}
	log.Warn().Str("was", owner.Name).Strs("was_at", owner.PeerURLs).Str("is", configured.Name).Strs("is_at", here).
		Msg("the data directory was that of a member with another name and other peer URLs; etcd goes on with it")
	return nil
}

// owner is the member that the data directory was written by, as it was last known there.
func (f *Findings) owner() (owner membership.Member, err error) {
	segments := f.segments()
	if len(segments) == 0 {
		return owner, errors.Join(errors.New("no log"), f.wal.err)
	}
	identity, err := headOf(f.segment(segments[0]))
	if err != nil {
		return owner, err
	}
	return owner, json.Unmarshal(f.contents.members[fmt.Sprintf("%x", identity.NodeID)], &owner)
}
