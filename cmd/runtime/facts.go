package runtime

import (
	"errors"
	"sync/atomic"
	"time"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/status"
)

// durations are how long etcd took, in nanoseconds; zero for what did not happen. An end that is forced reads them while
// the close still runs.
type durations struct{ start, stop, drain atomic.Int64 }

// Durations are how long etcd took to start, to close and, of that, to drain its clients' streams; zero for what did not
// happen.
func (w *World) Durations() (start, stop, drain time.Duration) {
	load := func(of *atomic.Int64) time.Duration { return time.Duration(of.Load()) }
	return load(&w.durations.start), load(&w.durations.stop), load(&w.durations.drain)
}

// Began is when the run began.
func (w *World) Began() time.Time { return w.began }

// LastExit is how the run before this one ended: a word of the exit record or of package status, and why.
func (w *World) LastExit() (class, reason string) {
	last := w.past.ended()
	return last.class, last.reason
}

// MemberID is etcd's, hexadecimal; empty until etcd is ready.
func (w *World) MemberID() string {
	id, _ := w.memberID.Load().(string)
	return id
}

// Member is its cluster as etcd sees it; zero while etcd does not run.
func (w *World) Member() (told status.Member) {
	etcd := w.opening.Load()
	if etcd == nil {
		return told
	}
	view, ok := etcd.View()
	if !ok {
		return told
	}
	told = status.Member{
		Name: view.Name, ClusterID: view.ClusterID, Leader: view.Leader, Term: view.Term,
		DBSize: view.DBSize, DBInUse: view.DBInUse, Quota: view.Quota,
	}
	for _, peer := range view.Peers {
		told.Peers = append(told.Peers, status.Peer(peer))
	}
	return told
}

// Progress says how far etcd's start has come, as a clause about etcd; empty before it was opened.
func (w *World) Progress() string {
	if etcd := w.opening.Load(); etcd != nil {
		return etcd.Doing()
	}
	return ""
}

// Readiness is what the monitor knows now.
func (w *World) Readiness() *readiness.Report { return w.monitor.Report() }

// Certificates are those in use.
func (w *World) Certificates() []status.Certificate { return w.certificates.Now() }

// ConfigOddities are those of etcd's configuration.
func (w *World) ConfigOddities() []string {
	if oddities := w.oddities.Load(); oddities != nil {
		return *oddities
	}
	return nil
}

// EtcdVersion is that of the embedded etcd, whatever it announces to its cluster.
func (*World) EtcdVersion() string { return dataversion.Embedded }

// Upkeep is how the database is kept small; nil before etcd is configured.
func (w *World) Upkeep() *status.Upkeep {
	etcd := w.opening.Load()
	if etcd == nil {
		return nil
	}
	is := etcd.Upkeep()
	told := &status.Upkeep{
		Phase: string(is.Phase), Since: is.Since, Reason: is.Reason, Expected: is.Expected.Seconds(), Progress: is.Progress,
		Done: is.Done, Failed: is.Failed, Freed: is.Freed, Lifted: is.Lifted,
	}
	for _, reader := range is.Readers {
		told.Readers = append(told.Readers, status.DatabaseReader(reader))
	}
	if last := is.Last; last != nil {
		told.Last = &status.Defragmentation{
			At: last.At, Took: last.Took.Seconds(), Origin: last.Origin, Before: last.Before, After: last.After, Error: last.Error,
		}
	}
	return told
}

// Defragment has the database defragmented now, and returns at once. The error says why it cannot be now.
func (w *World) Defragment() error {
	etcd := w.opening.Load()
	if etcd == nil {
		return errors.New("etcd does not run")
	}
	return etcd.Defragment()
}

// DataVersion is how far the data are kept at the wanted version; nil before etcd is ready.
func (w *World) DataVersion() *status.DataVersion {
	etcd := w.opening.Load()
	if etcd == nil {
		return nil
	}
	is, ok := etcd.DataVersion()
	if !ok {
		return nil
	}
	return &status.DataVersion{
		Wanted: is.Wanted.String(), Cluster: is.Cluster.String(), Storage: is.Storage.String(),
		Phase: string(is.Phase), Reason: is.Reason, Readable: is.Readable,
	}
}

// Record reads the exit record anew, as the next start will find it. The error says why there is no clean one.
func (w *World) Record() (exitcode.Word, error) {
	return exitcode.NewRecord(w.flags.RecordPath()).Read()
}
