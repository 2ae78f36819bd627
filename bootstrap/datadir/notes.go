package datadir

import (
	"net/http"
	"regexp"

	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/raft/v3/raftpb"
)

// A note is what a judgement needs of one entry of the log. Most entries get none.
type note struct {
	index   uint64
	version string             // the cluster version that the entry sets, such as 3.6.0
	change  *raftpb.ConfChange // the member that it adds, promotes, updates or removes
	method  string             // of a request of the v2 API that etcd 3.6 refuses to replay
}

// note reads one entry. An entry overrides what was noted from its index on, as raft does after a change of leader.
func (h *history) note(entry []byte) {
	index := entryIndex(entry)
	if index == 0 {
		return
	}
	if h.lowest == 0 || index < h.lowest {
		h.lowest = index
	}
	h.notes = trimNotes(h.notes, index)
	if n, ok := noteOf(entry); ok {
		n.index = index
		h.notes = append(h.notes, n)
	}
}

// before returns the notes of the entries before an index. Notes are in the order of their entries.
func trimNotes(notes []note, index uint64) []note {
	for len(notes) > 0 && notes[len(notes)-1].index >= index {
		notes = notes[:len(notes)-1]
	}
	return notes
}

// longestRequest is more than an entry takes, in bytes, that sets a version or a member's attributes, or reads through the
// v2 API. Larger entries are not searched: most of a log's bytes are in them.
const longestRequest = 512

func noteOf(entry []byte) (n note, ok bool) {
	if changesMembers(entry) {
		n.change = &raftpb.ConfChange{}
		return n, n.change.Unmarshal(message(entry, entryData)) == nil
	}
	if len(entry) > longestRequest {
		return n, false
	}
	data := message(entry, entryData)
	if version := message(message(data, clusterVersionSet), setVersion); version != nil {
		return note{version: string(version)}, true
	}
	return noteOfV2(data)
}

// The numbers of fields: of the request of the v2 API in a request of the v3 API (etcd's raft_internal.proto), and of
// what is in it (etcdserver.proto).
const (
	requestV2   = 2
	methodField = 2
	pathField   = 3
	valueField  = 4
)

var (
	methodWord     = regexp.MustCompile(`^[A-Z]+$`)
	attributesPath = regexp.MustCompile("^" + membership.StoreMembersPrefix + "/[[:xdigit:]]{1,16}/attributes$")
)

// noteOfV2 reads a request of the v2 API, which is an entry of its own or in a request of the v3 API. etcd 3.5 and older set the
// cluster version and the members' attributes that way, and etcd 3.6 replays these two and panics over any other: etcd 3.4
// writes one for each probe of its /health.
func noteOfV2(data []byte) (n note, ok bool) {
	request := data
	if inner := message(data, requestV2); inner != nil && !methodWord.Match(inner) {
		request = inner
	}
	method, path := string(message(request, methodField)), string(message(request, pathField))
	switch {
	case !methodWord.MatchString(method):
		return n, false
	case method != http.MethodPut:
		return note{method: method}, true
	case path == membership.StoreClusterVersionKey():
		return note{version: string(message(request, valueField))}, true
	}
	return note{method: method}, !attributesPath.MatchString(path)
}
