package member_test

import (
	"expvar"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"

	"etcd-wrapper/bootstrap/member"
	"etcd-wrapper/bootstrap/upkeep"
)

// eager is an upkeep that looks often and finds little enough.
func eager() member.Upkeep {
	return member.Upkeep{
		Threshold: upkeep.Threshold{Free: 0.3, Min: 4 << 20}, MaxPause: time.Minute, Interval: 200 * time.Millisecond,
	}
}

// leadLastStarted has the member lead that etcd publishes its raft status of, which is the one started last in a process.
func leadLastStarted(t *testing.T, members []*bench) {
	t.Helper()
	published := expvar.Get("raft.status").(expvar.Func).Value().(raft.Status)
	_, err := members[0].client(t).MoveLeader(soon(t), published.ID)
	require.NoError(t, err)
}

func TestThreeMembersAreDefragmentedOneAfterTheOtherAndTheLeaderLast(t *testing.T) {
	members := threeKept(t, eager())
	defer members[0].Close()
	leadLastStarted(t, members)
	client := members[0].client(t)
	client.SetEndpoints(endpoint(members[0].config), endpoint(members[1].config), endpoint(members[2].config))
	fill(t, client, 40)
	empty(t, client)
	for i := 0; i < 2000; i++ {
		began := time.Now()
		_, err := client.Put(soon(t), "key", fmt.Sprint(i))
		require.NoError(t, err)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Log("slow", i, took)
		}
		done := 0
		for _, b := range members {
			done += b.Upkeep().Done
		}
		if done >= 3 {
			break
		}
	}
	for i, b := range members {
		s := b.Upkeep()
		t.Logf("%d %+v %+v", i, s, s.Last)
		t.Log(b.log.String())
	}
	reply, err := client.Get(soon(t), "etcd-wrapper/", clientv3.WithPrefix())
	require.NoError(t, err)
	t.Log(reply.Kvs)
}
