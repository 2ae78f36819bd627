package status

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"etcd-wrapper/member/state"
)

// MemberStatus is the status of one member of a cluster.
type MemberStatus struct {
	Member   string    `json:"member"`
	Document *Document `json:"status,omitempty"` // nil if it has not answered
	Error    string    `json:"error,omitempty"`  // why there is no document
}

// memberTimeout bounds the time for all members to answer, in parallel.
const memberTimeout = 3 * time.Second

// FetchAll fetches the status of all members that known lists, from the hosts of their peer URLs and the same port, in the same order.
// secured is the TLS configuration; nil means plain HTTP.
func FetchAll(ctx context.Context, known Document, port uint16, secured *tls.Config) []MemberStatus {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	answers := make([]MemberStatus, len(known.Peers))
	var pending sync.WaitGroup
	for i, peer := range known.Peers {
		answers[i].Member = cmp.Or(peer.Name, peer.ID)
		if peer.ID == known.MemberID {
			answers[i].Document = &known
			continue
		}
		pending.Go(func() {
			document, err := fetchFrom(ctx, known, peer, port, secured)
			if err != nil {
				answers[i].Error = err.Error()
				return
			}
			answers[i].Document = &document
		})
	}
	pending.Wait()
	return answers
}

func fetchFrom(ctx context.Context, known Document, peer state.Peer, port uint16, secured *tls.Config) (Document, error) {
	if len(peer.URLs) == 0 {
		return Document{}, errors.New("it has no peer URL")
	}
	at, err := url.Parse(peer.URLs[0])
	if err != nil {
		return Document{}, fmt.Errorf("its peer URL is invalid: %w", err)
	}
	client := newClient(at.Hostname(), port, "", memberTimeout, secured)
	document, err := client.Fetch(ctx)
	if err != nil {
		return Document{}, err
	}
	return document, checkMember(document, known, peer, client.address)
}

// checkMember rejects the status of any process but the member's own: an address may lead to another member, to another cluster or to
// a program that is no wrapper at all. A member that is still starting does not know its ID, and is not ready.
func checkMember(answer, known Document, peer state.Peer, address string) error {
	switch {
	case answer.MemberID == "" && (answer.Ready || answer.State == ""):
		return fmt.Errorf("%s answers without a member ID: another program listens there; check that the member's wrapper runs on that port", address)
	case answer.MemberID != "" && answer.MemberID != peer.ID, answer.ClusterID != "" && known.ClusterID != "" && answer.ClusterID != known.ClusterID:
		return fmt.Errorf("%s answers for member %s of cluster %s (%s), not for this member: it does not run there, or its wrapper has another port",
			address, cmp.Or(answer.MemberID, "?"), cmp.Or(answer.ClusterID, "?"), answer.Pod)
	default:
		return nil
	}
}
