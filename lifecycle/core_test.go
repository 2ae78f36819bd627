package lifecycle_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// happening is an event with its payload.
type happening struct {
	event   Event
	payload Payload
}

// walk starts in from and lets everything happen in order.
func walk(from State, all ...happening) Core {
	rules, core := NewRules(Table, Elsewhere), Core{State: from}
	for _, h := range all {
		core, _ = rules.Step(core, h.event, h.payload)
	}
	return core
}

func TestExitStatus(t *testing.T) {
	term := happening{Signal, Payload{Signal: syscall.SIGTERM}}
	interrupt := happening{Signal, Payload{Signal: syscall.SIGINT}}
	closed := happening{EtcdClosed, Payload{ClosedInOrder: true}}
	untouched := happening{EtcdClosed, Payload{NeverOpened: true}}
	settled := happening{RecordSettled, Payload{}}
	failed := happening{EtcdFailed, Payload{Status: exitcode.EtcdFailed}}
	elapsed := happening{Elapsed, Payload{}}

	for story, want := range map[string]struct {
		from State
		all  []happening
		is   exitcode.Code
	}{
		"a stop that was asked for and was clean": {Serving, []happening{term, closed, settled}, exitcode.Clean},
		"POST /stop":                                   {Serving, []happening{{StopPosted, Payload{}}, closed, settled}, exitcode.Clean},
		"a stop before etcd was opened":                {Wait, []happening{interrupt, untouched, settled}, exitcode.Clean},
		"an invalid configuration":                     {FetchConfig, []happening{{ConfigInvalid, Payload{Status: exitcode.BadConfig}}, untouched, settled}, exitcode.BadConfig},
		"etcd that did not start":                      {StartEtcd, []happening{failed, {EtcdClosed, Payload{}}}, exitcode.EtcdFailed},
		"etcd that stopped by itself":                  {Serving, []happening{failed, closed}, exitcode.EtcdFailed},
		"etcd that stopped by itself before a SIGTERM": {Serving, []happening{failed, term, closed}, exitcode.EtcdFailed},
		"etcd that was not ready in time":              {StartEtcd, []happening{elapsed, closed}, exitcode.NotReady},
		"a record that could not be removed":           {StartEtcd, []happening{{EtcdFailed, Payload{Status: exitcode.BadRecord}}, untouched, settled}, exitcode.BadRecord},
		"a record that could not be written":           {Serving, []happening{term, closed, {RecordSettled, Payload{Status: exitcode.BadRecord}}}, exitcode.BadRecord},
		"a close that was not in order":                {Serving, []happening{term, {EtcdClosed, Payload{Status: exitcode.EtcdFailed}}}, exitcode.EtcdFailed},
		"a stop that ran out of its budget":            {Serving, []happening{term, elapsed}, exitcode.OutOfTime},
		"a second SIGTERM":                             {Serving, []happening{term, term}, exitcode.Code(143)},
		"SIGINT after SIGTERM":                         {Serving, []happening{term, interrupt}, exitcode.Code(130)},
		"a crash":                                      {Serving, []happening{{Crashed, Payload{}}, settled}, exitcode.Crashed},
		"a crash while closing":                        {Serving, []happening{term, {Crashed, Payload{}}, settled}, exitcode.Crashed},
		"SIGTERM once after POST /stop":                {Serving, []happening{{StopPosted, Payload{}}, term, closed, settled}, exitcode.Clean},
	} {
		t.Run(story, func(t *testing.T) {
			end := walk(want.from, want.all...)
			assert.Equal(t, Terminated, end.State)
			assert.Equal(t, want.is, end.Facts.Status)
		})
	}
}

func TestRecord_stopRequester(t *testing.T) {
	for story, want := range map[string]struct {
		asked happening
		word  exitcode.Word
	}{
		"SIGTERM":    {happening{Signal, Payload{Signal: syscall.SIGTERM}}, exitcode.Terminated},
		"SIGINT":     {happening{Signal, Payload{Signal: syscall.SIGINT}}, exitcode.Interrupted},
		"POST /stop": {happening{StopPosted, Payload{}}, exitcode.Terminated},
	} {
		t.Run(story, func(t *testing.T) {
			assert.Equal(t, want.word, walk(Serving, want.asked).Facts.RecordWord())
		})
	}
}
