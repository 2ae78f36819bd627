package member

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/member/dataversion"
)

// Options configure a Member. All fields but DataVersion, Upkeep, FindsPlace, AskForVote and BeforeCompaction are required.
type Options struct {
	Log zerolog.Logger
	// Crash is told, once, of a failure that etcd calls fatal or that made it panic. The goroutine that it came from
	// never goes on, so the process must end.
	Crash func(reason error)
	// ClosePatience is how long an orderly close may take before etcd's server is stopped under it. etcd waits its request
	// timeout, 7 s by default, once for each client listener and once for handing its leadership over.
	ClosePatience time.Duration
	// DataVersion is the version of etcd that has to be able to read the data. The zero value leaves that to etcd.
	DataVersion dataversion.Version
	// Upkeep is when the database is defragmented.
	Upkeep Upkeep
	// FindsPlace has the member tell the cluster its peer URLs, if they have changed, and ask for a vote while it is a
	// learner. A backup-restore sidecar does that itself.
	FindsPlace bool
	// User and Password are root's, for a member that finds its place where authentication is on; empty if it is off.
	User, Password string
	// AskForVote asks the others, as a client of theirs, to promote that member of that cluster. It is for a learner where
	// authentication is on and no User is given; nil if nobody can.
	AskForVote func(ctx context.Context, cluster, member types.ID, members []membership.Member) error
	// DataInUse is told, once, that another process has the database open for writing, before Open waits for it.
	DataInUse func()
	// BeforeCompaction reads what a compaction is about to remove, be it a client's or etcd's own; nil if nobody cares. It is
	// called where the compaction is asked for, and its context ends soon.
	BeforeCompaction func(context.Context)
}
