package recovery_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// condition is what may hold while a misfortune happens to a member. Two that a cluster survives one by one may be too much
// together.
type condition struct {
	name  string
	holds func(c *trio, victim *member) (ends func())
}

var conditions = []condition{
	{"the store is away for a while", func(c *trio, _ *member) func() { // not for good: an empty volume waits for it
		c.depot.away()
		return goesOn(func(ctx context.Context, dice *rand.Rand) {
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
		return goesOn(func(ctx context.Context, dice *rand.Rand) {
			rest(ctx, time.Duration(dice.Int64N(int64(6*time.Second))))
			_ = still.Cmd.Process.Signal(syscall.SIGCONT) // it may have been killed
		}, c.dice)
	}},
	{"another leads every moment", func(c *trio, _ *member) func() {
		return goesOn(func(ctx context.Context, dice *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, time.Second) {
				c.handOver(ctx, dice)
			}
		}, c.dice)
	}},
	{"databases are defragmented", func(c *trio, _ *member) func() {
		return goesOn(func(ctx context.Context, dice *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, time.Second) {
				_, _ = c.etcd.Defragment(ctx, c.members[dice.IntN(len(c.members))].Endpoint()) // it may be down
			}
		}, c.dice)
	}},
	{"leases come and go", func(c *trio, _ *member) func() {
		return goesOn(func(ctx context.Context, _ *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, 10*time.Millisecond) {
				_, _ = c.etcd.Grant(ctx, 1) // there may be no quorum
			}
		}, c.dice)
	}},
	{"what was overwritten is compacted away", func(c *trio, _ *member) func() {
		return goesOn(func(ctx context.Context, _ *rand.Rand) {
			for ; ctx.Err() == nil; rest(ctx, time.Second) {
				if now, err := c.etcd.Get(ctx, "any", clientv3.WithCountOnly()); err == nil {
					_, _ = c.etcd.Compact(ctx, now.Header.Revision) // as above
				}
			}
		}, c.dice)
	}},
}

// under draws what holds while a misfortune happens: in half of the rounds nothing does, nor where the cluster has to come back
// from its store.
func (c *trio) under(drawn misfortune, victim *member) (name string, ends func()) {
	also := conditions[c.dice.IntN(len(conditions))]
	itself := strings.Contains(drawn.name, "store away") && strings.Contains(also.name, "store")
	if drawn.restores || itself || c.dice.IntN(2) == 0 {
		return drawn.name, func() {}
	}
	sum.add(func(f *figures) { f.disasters["of three, while "+also.name]++ })
	return drawn.name + ", while " + also.name, also.holds(c, victim)
}

// goesOn has something go on until ends is called, which waits for its end.
func goesOn(what func(ctx context.Context, dice *rand.Rand), dice *rand.Rand) (ends func()) {
	own := rand.New(rand.NewPCG(dice.Uint64(), 0))
	ctx, cancel := context.WithTimeout(context.Background(), returning)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		what(ctx, own)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func rest(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
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
