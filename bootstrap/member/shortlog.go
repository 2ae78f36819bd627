package member

import (
	"fmt"
	"time"

	"go.etcd.io/etcd/server/v3/storage/schema"
)

// settling is how long a leader that has just been elected may take to commit what is in its log.
const settling = 2 * time.Second

// shortLog is an error if this member leads with a log that ends before the database does. etcd mends a torn log by
// cutting it off; if the database has applied more than is left, etcd drops what is proposed until the log is as long
// again. What the log had and the database had not is lost then, though it was acknowledged. A follower gets the rest
// from its leader.
func (m *Member) shortLog() error {
	server := m.etcd.Server
	if server.Leader() != server.MemberID() {
		return nil
	}
	applied, _ := schema.ReadConsistentIndex(server.Backend().ReadTx())
	if committed := server.CommittedIndex(); committed < applied {
		return fmt.Errorf("the log was cut off or damaged: it ends at index %d, while the database holds what came until %d", committed, applied)
	}
	return nil
}
