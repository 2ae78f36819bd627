package report

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

// machine stands still.
type machine struct {
	now atomic.Pointer[lifecycle.Snapshot]
}

func standing(now *lifecycle.Snapshot) *machine {
	m := &machine{}
	m.now.Store(now)
	return m
}

func (m *machine) Snapshot() *lifecycle.Snapshot { return m.now.Load() }

// place is a world in which everything has happened.
type place struct {
	began    time.Time
	progress string
	awaits   string
	later    atomic.Pointer[string] // the progress that a test has got on to
	record   exitcode.Word
	unstored error
}

func (p *place) Unstored() error { return p.unstored }

func (p *place) Began() time.Time { return p.began }

func (*place) LastExit() (string, string) { return "crash", "panic: by the test" }

func (*place) MemberID() string { return "8e9e05c52164694d" }

func (*place) Member() status.Member {
	return status.Member{
		Name: "etcd-main-0", ClusterID: "1", Leader: "2", Term: 3, DBSize: 4, DBInUse: 5, Quota: 6,
		Peers: []status.Peer{{ID: "2", Name: "etcd-main-1", URLs: []string{"http://etcd-main-1:2380"}, Active: true, Leader: true, Learner: true}},
	}
}

func (p *place) Progress() string {
	if later := p.later.Load(); later != nil {
		return *later
	}
	return p.progress
}

func (*place) Readiness() *readiness.Report { return readiness.NewMonitor(zerolog.Nop()).Report() }

func (*place) EtcdVersion() string { return "3.6.16" }

func (p *place) Awaits() string { return p.awaits }

func (*place) Recovery() *status.Recovery {
	return &status.Recovery{State: "Build", Since: time.Now(), Reason: "there is room", Loss: "1 revision is lost", Bytes: 1, Of: 2, Rate: 1, Seconds: 1}
}

func (*place) Upkeep() *status.Upkeep {
	at := time.Unix(1.7e9, 0)
	return &status.Upkeep{
		Phase: "running", Since: at, Reason: "etcd copies", Expected: 1, Progress: 0.5, Done: 1, Failed: 1, Freed: 1, Lifted: 1,
		Readers: []status.DatabaseReader{{What: "the snapshot", Since: at}},
		Last:    &status.Defragmentation{At: at, Took: 1, Origin: "client", Before: 2, After: 1, Error: "the disk is full"},
	}
}

func (*place) Leases() []status.Lease {
	at := time.Unix(1.7e9, 0)
	return []status.Lease{{
		Kind: "member", Name: "etcd-main-0", Holder: "a:b:Leader", Renewed: at,
		Trouble: &status.LeaseTrouble{Since: at, Times: 1, Message: "the API server cannot be asked", NextTry: at},
	}}
}

func (*place) Backup() *status.Backup {
	at := time.Unix(1.7e9, 0)
	return &status.Backup{
		Store: "file:///backups", Role: "writes", Revision: 9, BehindRevisions: 1, BehindSeconds: 0.5, NextFull: at,
		StoredBytes: 1, UploadedBytes: 1, SpoolBytes: 1, SpoolLimit: 1,
		Window:       &status.BackupWindow{FromRevision: 1, ToRevision: 9, From: at, To: at},
		LastFull:     &status.BackupFull{Revision: 1, At: at, Bytes: 1, Reason: "schedule"},
		FullRunning:  &status.BackupRun{Reason: "schedule", Since: at, Doing: "stores the copy", Sent: 1, Of: 2, LeftSeconds: 1},
		LastVerified: &status.BackupProof{Revision: 1, At: at, Passed: true, Reason: "the hash is etcd's own"},
		Trouble:      &status.BackupError{Since: at, Times: 1, Message: "the store is away", NextTry: at},
	}
}

func (*place) DataVersion() *status.DataVersion {
	return &status.DataVersion{Wanted: "3.5", Cluster: "3.5", Storage: "3.5", Phase: "kept", Reason: "all is well", Readable: true}
}

func (*place) Certificates() []status.Certificate {
	return []status.Certificate{{Name: "etcd_server", Path: "/tls.crt", Expires: time.Unix(4e9, 0)}}
}

func (*place) ConfigOddities() []string {
	return []string{"quota is no key that etcd knows; it is ignored"}
}

func (*place) Durations() (start, stop, drain time.Duration) {
	return 1500 * time.Millisecond, 2 * time.Second, 70 * time.Millisecond
}

func (p *place) Record() (exitcode.Word, error) {
	if p.record == "" {
		return "", errors.New("no clean exit record")
	}
	return p.record, nil
}

func full() *lifecycle.Snapshot {
	at := time.Unix(1.8e9, 0)
	return &lifecycle.Snapshot{
		State: lifecycle.Terminating, Since: at, PhaseSince: at.Add(-time.Hour), Reason: "stop asked for", Attempt: 3, NextRetry: at,
		Trouble: lifecycle.Trouble{
			At: at, Since: at.Add(-time.Hour), Times: 3, Ended: at.Add(time.Second), Class: lifecycle.OfEtcd, Text: "etcd stopped\nand left a trace",
		},
		Word:       bootstrap.Successful,
		Validation: lifecycle.Validation{Mode: bootstrap.Full, Why: "no record"},
		History: []lifecycle.Transition{{
			At: at, From: lifecycle.Serving, Event: lifecycle.Signal, Guard: lifecycle.SecondSignal, To: lifecycle.Terminating,
			Reason: "stop", Times: 2, After: time.Minute,
		}},
		Tallies: []lifecycle.Tally{{
			From: lifecycle.Query, Event: lifecycle.Replied, Guard: lifecycle.SaysFailed, To: lifecycle.Wait, Times: 2, Last: at, Spent: time.Second,
		}},
	}
}
