package recovery_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// condition may hold during a misfortune of a member. Two that a cluster survives one by one may be too much
// together.
type condition struct {
	name  string
	holds func(c *trio, victim *member) (ends func())
}

var conditions = []condition{
	{"the store is away for a while", func(c *trio, _ *member) func() { // not for good: an empty volume waits for it
		c.depot.away()
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			rest(ctx, time.Duration(dice.Int64N(int64(20*time.Second))))
			c.depot.back()
		}, c.dice)
	}},
	{"there is no space", func(c *trio, victim *member) func() {
		c.raiseNoSpace(c.other(victim))
		return func() {} // there is, so the alarm is lifted
	}},
	{"another stands still for a while", func(c *trio, victim *member) func() {
		still := c.other(victim).run
		still.Signal(syscall.SIGSTOP)
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			rest(ctx, time.Duration(dice.Int64N(int64(6*time.Second))))
			_ = still.Cmd.Process.Signal(syscall.SIGCONT) // it may have been killed
		}, c.dice)
	}},
	{"its disk is slow", func(_ *trio, victim *member) func() { // from its next start on, until the one after this is over
		before := victim.Under
		victim.Under = slices.Concat(before, slowDisk)
		return func() { victim.Under = before }
	}},
	{"values are huge", func(c *trio, _ *member) func() {
		return inBackground(func(ctx context.Context, _ *rand.Rand) {
			for value := strings.Repeat("huge", 300<<10); ctx.Err() == nil; rest(ctx, 250*time.Millisecond) {
				_, _ = c.etcd.Put(ctx, "brief/huge", value) // there may be no quorum
			}
		}, c.dice)
	}},
	{"a member that never comes is added, and removed", func(c *trio, _ *member) func() { // no member is replaced meanwhile
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			nowhere := fmt.Sprintf("http://%s:2380", c.net.address(len(c.members)))
			asked, cancel := context.WithTimeout(ctx, patience)
			_, _ = c.etcd.MemberAddAsLearner(asked, []string{nowhere}) // there may be no quorum
			cancel()
			rest(ctx, time.Duration(dice.Int64N(int64(6*time.Second))))
			for watch := harness.StartWatch(); c.remove(nowhere) != nil && watch.Took() < returning; {
				rest(context.Background(), time.Second) // not before that is done
			}
		}, c.dice)
	}},
	{"another leads every moment", func(c *trio, _ *member) func() {
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, time.Second) {
				c.handOver(ctx, dice)
			}
		}, c.dice)
	}},
	{"databases are defragmented", func(c *trio, _ *member) func() {
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, time.Second) {
				_, _ = c.etcd.Defragment(ctx, c.members[dice.IntN(len(c.members))].Endpoint()) // it may be down
			}
		}, c.dice)
	}},
	{"leases come and go", func(c *trio, _ *member) func() {
		return inBackground(func(ctx context.Context, _ *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, 10*time.Millisecond) {
				_, _ = c.etcd.Grant(ctx, 1) // there may be no quorum
			}
		}, c.dice)
	}},
	{"what was overwritten is compacted away", func(c *trio, _ *member) func() {
		return inBackground(func(ctx context.Context, _ *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, time.Second) {
				if now, err := c.etcd.Get(ctx, "any", clientv3.WithCountOnly()); err == nil {
					_, _ = c.etcd.Compact(ctx, now.Header.Revision) // as above
				}
			}
		}, c.dice)
	}},
}

// under draws a condition for a misfortune: none in half of the rounds, nor where the cluster has to be restored
// from its store.
func (c *trio) under(drawn misfortune, victim *member) (name string, ends func()) {
	also := draw(c.t, c.dice, conditions, "while", *while, func(one condition) (string, bool) { return one.name, true })
	itself := strings.Contains(drawn.name, "store away") && strings.Contains(also.name, "store")
	if drawn.restores || itself || *while == "" && c.dice.IntN(2) == 0 {
		return drawn.name, func() {}
	}
	sum.add(func(f *figures) { f.disasters["of three, while "+also.name]++ })
	return drawn.name + ", while " + also.name, also.holds(c, victim)
}

// inBackground runs something until ends is called, which waits for its end.
func inBackground(what func(ctx context.Context, dice *rand.Rand), dice *rand.Rand) (ends func()) {
	own := rand.New(rand.NewPCG(dice.Uint64(), 0))
	ctx, cancel := context.WithTimeout(context.Background(), returning)
	done := make(chan struct{})
	go func() {
		defer close(done)
		what(ctx, own)
	}()
	return func() {
		cancel()
		<-done
	}
}

func rest(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// slowDisk runs a program for which every flush takes 20 ms longer. strace's own output is not the program's.
var slowDisk = []string{"sh", "-c", `exec 3>&2 2>/dev/null; exec strace -D -f --seccomp-bpf -qqq -o /dev/null -e trace=fsync,fdatasync \
	-e inject=fsync,fdatasync:delay_enter=20000 sh -c 'exec 2>&3 3>&-; exec "$0" "$@"' "$0" "$@"`}

// remove takes the member with a peer URL out of the cluster.
func (c *trio) remove(at string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if slices.Contains(m.PeerURLs, at) {
			_, err = c.etcd.MemberRemove(ctx, m.ID)
		}
	}
	return err
}

// handOver has the leader, if there is one, make another the leader.
func (c *trio) handOver(ctx context.Context, dice *rand.Rand) {
	asked, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(asked)
	if err != nil || len(list.Members) == 0 {
		return
	}
	to := list.Members[dice.IntN(len(list.Members))].ID
	for _, m := range c.members {
		if client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.Endpoint()}, DialTimeout: time.Second}); err == nil {
			_, _ = client.MoveLeader(asked, to) // only the leader does
			_ = client.Close()
		}
	}
}
