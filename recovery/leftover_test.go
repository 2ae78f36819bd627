package recovery

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestDroppedAlarmsAreLogged(t *testing.T) {
	w := newFilledWorld(t)
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(t, err)
	_, err = v3client.New(server.Server).Put(t.Context(), "a", "value")
	require.NoError(t, err)
	_, err = server.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(server.Server.MemberID()), Alarm: etcdserverpb.AlarmType_CORRUPT,
	})
	require.NoError(t, err)
	server.Close()
	w.backUp(1)
	w.lose()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), `"alarms":["CORRUPT"]`)
}
