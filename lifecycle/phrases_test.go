package lifecycle_test

import (
	"syscall"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// phrases are the words in which scenarios are told, one for everything that can happen.
var phrases = map[string]happening{
	"the process begins":                         {Begun, Payload{}},
	"another process holds the volume":           {VolumeBusy, Payload{}},
	"the sidecar says New":                       {Replied, Payload{Word: bootstrap.New}},
	"the sidecar says Progress":                  {Replied, Payload{Word: bootstrap.Progress}},
	"the sidecar says Successful":                {Replied, Payload{Word: bootstrap.Successful}},
	"the sidecar says Failed":                    {Replied, Payload{Word: bootstrap.Failed}},
	"the validation says Failed for good":        {Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}},
	"the sidecar says a word of its own":         {Replied, Payload{Word: unknownWord}},
	"the sidecar does not answer":                {NoAnswer, Payload{}},
	"the initialization is accepted":             {Accepted, Payload{}},
	"the initialization is not accepted":         {NotAccepted, Payload{}},
	"time passes":                                {Elapsed, Payload{}},
	"an etcd has the data open for writing":      {DataInUse, Payload{}},
	"the data directory is locked by another":    {DataInUse, Payload{}},
	"the sidecar says Successful soon":           {Replied, Payload{Word: bootstrap.Successful, Early: young}},
	"the sidecar says Successful late":           {Replied, Payload{Word: bootstrap.Successful, Early: old}},
	"the configuration comes early":              {ConfigPrefetched, Payload{Config: some, Early: young}},
	"the early configuration can't be used":      {ConfigPrefetched, Payload{}},
	"the configuration is here":                  {ConfigFetched, Payload{Config: some}},
	"a certificate file can't be used":           {ConfigUnavailable, Payload{}},
	"the configuration is valid":                 {ConfigValid, Payload{}},
	"the configuration is invalid":               {ConfigInvalid, Payload{Status: exitcode.BadConfig}},
	"the configuration can't be fetched":         {ConfigUnavailable, Payload{}},
	"etcd is ready":                              {EtcdReady, Payload{}},
	"etcd does not start":                        {EtcdFailed, Payload{Status: exitcode.EtcdFailed}},
	"etcd stops by itself":                       {EtcdFailed, Payload{Status: exitcode.EtcdFailed}},
	"the exit record can't be removed":           {EtcdFailed, Payload{Status: exitcode.BadRecord}},
	"etcd is closed in order":                    {EtcdClosed, Payload{ClosedInOrder: true}},
	"etcd is closed, but not in order":           {EtcdClosed, Payload{Status: exitcode.EtcdFailed}},
	"there is no etcd to close":                  {EtcdClosed, Payload{NeverOpened: true}},
	"the exit record is settled":                 {RecordSettled, Payload{}},
	"the exit record can't be written":           {RecordSettled, Payload{Status: exitcode.BadRecord}},
	"SIGTERM":                                    {Signal, Payload{Signal: syscall.SIGTERM}},
	"SIGINT":                                     {Signal, Payload{Signal: syscall.SIGINT}},
	"POST /stop":                                 {StopPosted, Payload{}},
	"the wrapper's port can't be served":         {ListenerLost, Payload{Status: exitcode.ServerTaken}},
	"a goroutine panics, or etcd calls it fatal": {Crashed, Payload{}},
}

// everywhere are the words that begin a scenario which is played once in each state of a group.
var everywhere = map[string]Group{
	"in each state before etcd":    BeforeEtcd,
	"in each state with etcd":      WithEtcd,
	"in each state before the end": BeforeEnd,
}
