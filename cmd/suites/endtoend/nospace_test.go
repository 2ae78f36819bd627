package endtoend_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// lifted is the maximum time from deleting and compacting keys until the NOSPACE alarm is disarmed.
const lifted = 20 * time.Second

// After keys have been deleted and compacted, all members must be defragmented one after the other until writes
// succeed again, because each member raises an alarm of its own.
func TestMembersWithoutSpace_acceptWritesAfterCompaction(t *testing.T) {
	onlyWithMembers(t)
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprintf("of %d members", size), func(t *testing.T) { awaitWrites(t, size) })
	}
}

func awaitWrites(t *testing.T, size int) {
	t.Helper()
	pods := harness.StandaloneMembers(t, size)
	for _, p := range pods {
		p.Config["quota-backend-bytes"] = 32 << 20
		p.WriteConfigFile()
	}
	c := startThree(t, pods)
	etcd := pods[0].Etcd()
	put := func(etcd *clientv3.Client, key string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := etcd.Put(ctx, key, string(make([]byte, 256<<10)))
		return err
	}
	for round := range 2 {
		for i := 0; put(etcd, fmt.Sprintf("/much/%06d", i)) == nil; i++ {
			require.Less(t, i, 1000, "the quota must be exceeded")
		}
		deleted, err := etcd.Delete(t.Context(), "/much/", clientv3.WithPrefix())
		require.NoError(t, err)
		_, err = etcd.Compact(t.Context(), deleted.Header.Revision)
		require.NoError(t, err)
		watch := harness.StartWatch()
		for _, p := range pods {
			harness.Eventually(t, "writes succeed again", func() bool { return put(p.Etcd(), "/key") == nil })
		}
		took := watch.Duration()
		t.Logf("round %d: writes succeeded at every member after %s", round, took)
		assert.Less(t, took, lifted)
		alarms, err := etcd.AlarmList(t.Context())
		require.NoError(t, err)
		assert.Empty(t, alarms.Alarms)
	}
	for _, run := range c.runs {
		run.AwaitReady()
	}
}

// A lost member must rejoin and be promoted while the NOSPACE alarm is raised, even though the cluster does not grant
// the lease that normally marks a learner for promotion.
func TestMemberLostWithoutSpace(t *testing.T) {
	t.Parallel()
	pods := harness.StandaloneMembers(t, 3)
	pods[0].Config["quota-backend-bytes"] = 1 << 20
	pods[0].WriteConfigFile()
	c := startThree(t, pods)
	harness.Eventually(t, "the NOSPACE alarm is raised", func() bool {
		_ = pods[1].TryPut("large", strings.Repeat("v", 5<<18), harness.Patience) // may time out on a busy machine
		return c.alarmed()
	})
	for _, step := range steps[2:4] { // kill the member while it is rejoining
		c.runs[2].LoseVolume()
		c.runs[2] = pods[2].Start()
		c.runs[2].AwaitLine(step)
	}
	c.runs[2].Kill()
	pods[2].StartReady()
	assert.True(t, c.alarmed(), "the NOSPACE alarm is still raised")
	c.requireAllVoters()
}

// alarmed reports whether any alarm is raised.
func (c *three) alarmed() bool {
	c.Helper()
	alarms, err := c.pods[0].Etcd().AlarmList(c.Context())
	require.NoError(c, err)
	return len(alarms.Alarms) > 0
}

// A member whose data was deleted must rejoin despite a CORRUPT alarm, because users repair a corrupt member by
// deleting its data.
func TestMemberLostDuringCorruptAlarm(t *testing.T) {
	onlyWithMembers(t)
	t.Parallel()
	c := newThree(t)
	raised := c.raise(c.pods[2], etcdserverpb.AlarmType_CORRUPT)
	c.runs[2].LoseVolume()
	run := c.pods[2].Start()
	run.AwaitLine(harness.Line{"message": "etcd has joined its cluster"})
	_, err := c.pods[0].Etcd().AlarmDisarm(t.Context(), raised)
	require.NoError(t, err)
	run.AwaitReady()
	c.requireAllVoters()
}

// When a member is replaced, the wrapper must disarm the alarm of the removed member. Otherwise, the cluster would
// reject writes forever.
func TestReplacedMember_alarmIsDisarmed(t *testing.T) {
	t.Parallel()
	c := newThree(t)
	c.runs[2].Kill()
	c.raise(c.pods[2], etcdserverpb.AlarmType_NOSPACE)
	emptyVolume(c.pods[2])
	c.pods[2].StartReady()
	watch := harness.StartWatch()
	harness.Eventually(t, "writes succeed again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.pods[0].Etcd().Put(ctx, "key", "value")
		return err == nil
	})
	assert.Less(t, watch.Duration(), lifted)
	c.requireAllVoters()
}

// raise raises an alarm on behalf of a member.
func (c *three) raise(p *harness.Pod, alarm etcdserverpb.AlarmType) *clientv3.AlarmMember {
	c.Helper()
	client := c.pods[0].Etcd()
	list, err := client.MemberList(c.Context())
	require.NoError(c, err)
	at := slices.IndexFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.Name == p.Config["name"] })
	raised := &clientv3.AlarmMember{MemberID: list.Members[at].ID, Alarm: alarm}
	_, err = etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Alarm(c.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: alarm, MemberID: raised.MemberID,
	})
	require.NoError(c, err)
	return raised
}
