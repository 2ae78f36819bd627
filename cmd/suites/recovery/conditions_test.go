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

// A condition is a problem that persists while a fault is injected, because a cluster that survives each of them alone
// may not survive both at once.
type condition struct {
	name  string
	start func(c *threeMembers, victim *member) (end func())
}

var conditions = []condition{
	// This condition must end by itself, because a member with an empty volume waits for the store.
	{"the store is unreachable for a while", func(c *threeMembers, _ *member) func() {
		c.depot.disconnect()
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			sleep(ctx, time.Duration(dice.Int64N(int64(20*time.Second))))
			c.depot.reconnect()
		}, c.dice)
	}},
	{"there is no space", func(c *threeMembers, victim *member) func() {
		c.raiseNoSpace(c.other(victim))
		return func() {} // the members disarm the alarm themselves, because there is enough space
	}},
	{"another member is suspended for a while", func(c *threeMembers, victim *member) func() {
		suspended := c.other(victim).run
		suspended.Signal(syscall.SIGSTOP)
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			sleep(ctx, time.Duration(dice.Int64N(int64(6*time.Second))))
			_ = suspended.Cmd.Process.Signal(syscall.SIGCONT) // the process may have been killed
		}, c.dice)
	}},
	{"its disk is slow", func(_ *threeMembers, victim *member) func() { // takes effect at the next start
		before := victim.Under
		victim.Under = slices.Concat(before, slowDisk)
		return func() { victim.Under = before }
	}},
	{"large values are written", func(c *threeMembers, _ *member) func() {
		return inBackground(func(ctx context.Context, _ *rand.Rand) {
			for value := strings.Repeat("long", 300<<10); ctx.Err() == nil; sleep(ctx, 250*time.Millisecond) {
				_, _ = c.etcd.Put(ctx, "brief/large", value) // the cluster may have no quorum
			}
		}, c.dice)
	}},
	// No member can be replaced until the added member has been removed.
	{"a member that never starts is added and removed", func(c *threeMembers, _ *member) func() {
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			nowhere := fmt.Sprintf("http://%s:2380", c.net.address(len(c.members)))
			asked, cancel := context.WithTimeout(ctx, patience)
			_, _ = c.etcd.MemberAddAsLearner(asked, []string{nowhere}) // the cluster may have no quorum
			cancel()
			sleep(ctx, time.Duration(dice.Int64N(int64(6*time.Second))))
			for watch := harness.StartWatch(); c.remove(nowhere) != nil && watch.Duration() < recoveryTimeout; {
				sleep(context.Background(), time.Second) // even after ctx is done, because the member must be removed
			}
		}, c.dice)
	}},
	{"the leader changes every second", func(c *threeMembers, _ *member) func() {
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			for ; ctx.Err() == nil; sleep(ctx, time.Second) {
				c.moveLeader(ctx, dice)
			}
		}, c.dice)
	}},
	{"databases are defragmented", func(c *threeMembers, _ *member) func() {
		return inBackground(func(ctx context.Context, dice *rand.Rand) {
			for ; ctx.Err() == nil; sleep(ctx, time.Second) {
				_, _ = c.etcd.Defragment(ctx, c.members[dice.IntN(len(c.members))].Endpoint()) // the member may be down
			}
		}, c.dice)
	}},
	{"leases are granted and expire", func(c *threeMembers, _ *member) func() {
		return inBackground(func(ctx context.Context, _ *rand.Rand) {
			for ; ctx.Err() == nil; sleep(ctx, 10*time.Millisecond) {
				_, _ = c.etcd.Grant(ctx, 1) // the cluster may have no quorum
			}
		}, c.dice)
	}},
	{"old revisions are compacted", func(c *threeMembers, _ *member) func() {
		return inBackground(func(ctx context.Context, _ *rand.Rand) {
			for ; ctx.Err() == nil; sleep(ctx, time.Second) {
				if now, err := c.etcd.Get(ctx, "any", clientv3.WithCountOnly()); err == nil {
					_, _ = c.etcd.Compact(ctx, now.Header.Revision) // the cluster may have no quorum
				}
			}
		}, c.dice)
	}},
}

// chooseCondition chooses and starts a condition for a fault, and returns a name for both. In half of the rounds, and
// if the fault cannot be combined with the condition, no condition is started.
func (c *threeMembers) chooseCondition(fault memberFault, victim *member) (name string, end func()) {
	condition := choose(c.t, c.dice, conditions, "while", *while, func(one condition) (string, bool) { return one.name, true })
	sameFault := strings.Contains(fault.name, "store unreachable") && strings.Contains(condition.name, "store")
	if fault.restores || sameFault || *while == "" && c.dice.IntN(2) == 0 {
		return fault.name, func() {}
	}
	sum.add(func(f *figures) { f.disasters["of three, while "+condition.name]++ })
	return fault.name + ", while " + condition.name, condition.start(c, victim)
}

// inBackground calls a function in a goroutine. end cancels the function's context and waits until it has returned.
func inBackground(run func(ctx context.Context, dice *rand.Rand), dice *rand.Rand) (end func()) {
	own := rand.New(rand.NewPCG(dice.Uint64(), 0))
	ctx, cancel := context.WithTimeout(context.Background(), recoveryTimeout)
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx, own)
	}()
	return func() {
		cancel()
		<-done
	}
}

func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// slowDisk is a command that runs a program under strace and delays each of the program's fsync and fdatasync calls by
// 20 ms.
var slowDisk = []string{"sh", "-c", `exec 3>&2 2>/dev/null; exec strace -D -f --seccomp-bpf -qqq -o /dev/null -e trace=fsync,fdatasync \
	-e inject=fsync,fdatasync:delay_enter=20000 sh -c 'exec 2>&3 3>&-; exec "$0" "$@"' "$0" "$@"`}

// remove removes the member with the given peer URL from the cluster.
func (c *threeMembers) remove(peerURL string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if slices.Contains(m.PeerURLs, peerURL) {
			_, err = c.etcd.MemberRemove(ctx, m.ID)
		}
	}
	return err
}

// moveLeader makes the leader, if there is one, transfer its leadership to a random member.
func (c *threeMembers) moveLeader(ctx context.Context, dice *rand.Rand) {
	asked, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(asked)
	if err != nil || len(list.Members) == 0 {
		return
	}
	to := list.Members[dice.IntN(len(list.Members))].ID
	for _, m := range c.members {
		if client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.Endpoint()}, DialTimeout: time.Second}); err == nil {
			_, _ = client.MoveLeader(asked, to) // only the leader accepts the request
			_ = client.Close()
		}
	}
}
