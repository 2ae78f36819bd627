package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/maintenance"
	"etcd-wrapper/readiness/certificates"
	"etcd-wrapper/recovery/peers"
)

// Configure implements lifecycle.Member. The copy for debug containers is no reason not to start.
func (w *World) Configure(yaml []byte) error {
	if err := bootstrap.StoreConfig(w.flags.StoredConfigPath, yaml); err != nil {
		w.log.Warn().Err(err).Msg("the configuration is not kept for debugging")
	}
	checked, err := etcdconf.Parse(yaml)
	if err != nil {
		return err
	}
	if !bytes.Equal(yaml, w.warned) { // it is configured again while something else is waited for
		w.warned = yaml
		w.nameOddities(checked)
	}
	w.config = checked
	w.useCertificates(checked.Etcd)
	root := peers.OptionsOf("", "")
	w.etcd = member.New(checked.Etcd, member.Options{
		Log: w.log, Crash: w.crash, ClosePatience: lifecycle.ClosePatience, DataInUse: w.forfeit,
		DataVersion: dataversion.Parse(w.flags.DataVersion()), Upkeep: w.upkeep(),
		FindsPlace: w.flags.Standalone, User: root.User, Password: root.Password, AskForVote: w.askForVote, BeforeCompaction: w.beforeCompaction(),
	})
	w.opening.Store(w.etcd)
	w.record.Describe(w.describeData)
	return nil
}

// describeData is what the next start compares the data with. Where they can't be looked at, nothing compares equal.
func (w *World) describeData() []byte {
	taken, err := datadir.TakeFingerprint(w.config.Etcd.Dir, w.config.Etcd.WalDir)
	if err != nil {
		w.log.Warn().Err(err).Msg("the next start validates in full")
	}
	return taken.Note()
}

// askForVote asks the other members as recovery does, with the certificate that it shows them.
func (w *World) askForVote(ctx context.Context, cluster, member types.ID, members []membership.Member) error {
	others, err := peers.Of(w.config.Etcd, peers.OptionsOf(w.flags.EtcdCertPath, w.flags.EtcdKeyPath))
	if err != nil {
		return err
	}
	if others == nil {
		return errors.New("etcd's configuration names no other member that could be asked")
	}
	defer others.Close()
	return others.Promote(ctx, &peers.Census{Cluster: cluster.String(), Members: members, Own: peers.Member{ID: member}})
}

// upkeep is when the flags have the database defragmented.
func (w *World) upkeep() member.Upkeep {
	return member.Upkeep{
		Threshold: maintenance.Threshold{Free: w.flags.DefragThreshold.Free, Min: int64(w.flags.DefragThreshold.Min)},
		MaxPause:  w.flags.DefragMaxPause, Gate: w.Gate(),
	}
}

// forfeit ends the exit record for good. Where it can't be removed now, the stop tries again.
func (w *World) forfeit() {
	if err := w.record.Forfeit(); err != nil {
		w.log.Error().Err(err).Msg("somebody else has the data open, and the exit record is still there")
	}
}

func (w *World) nameOddities(checked *etcdconf.Checked) {
	if len(checked.Sidecars) > 0 {
		w.log.Debug().Strs("keys", checked.Sidecars).Msg("these keys of etcd's configuration are for the sidecar")
	}
	for _, key := range checked.Unknown {
		w.log.Warn().Str("key", key.Key).Msgf("etcd's configuration: %s is no key that etcd knows; it is ignored", key)
	}
	if len(checked.Ignored) > 0 {
		w.log.Warn().Strs("keys", checked.Ignored).Msg("the wrapper owns the log; these keys of etcd's configuration are ignored")
	}
	for _, doubt := range checked.Warnings {
		w.log.Warn().Msg("etcd's configuration: " + doubt)
	}
	w.warnOf(checked.Etcd)
}

// useCertificates takes in the files that etcd serves and connects with.
func (w *World) useCertificates(etcd *embed.Config) {
	server, _, _ := w.config.ServerCertificate()
	w.certificates.Use(map[string]string{
		certificates.EtcdServer:   server,
		certificates.EtcdServerCA: etcd.ClientTLSInfo.TrustedCAFile,
		certificates.EtcdPeer:     etcd.PeerTLSInfo.CertFile,
		certificates.EtcdPeerCA:   etcd.PeerTLSInfo.TrustedCAFile,
	})
}

// warnOf says what is allowed and rarely meant.
func (w *World) warnOf(etcd *embed.Config) {
	if etcd.ForceNewCluster {
		w.log.Warn().Msg("force-new-cluster is set: this start drops every other member from the cluster; take it out of etcd's configuration afterwards")
	}
	held, err := w.volume.Holds(etcd.Dir)
	if err != nil {
		w.log.Warn().Err(err).Send()
	} else if !held {
		w.log.Warn().Str("data_dir", etcd.Dir).Str("record", w.flags.RecordPath()).
			Msg("the data directory is on another volume than the exit record, which can then outlive the data that it speaks of")
	}
}

// Open implements lifecycle.Member.
func (w *World) Open(ctx context.Context) error {
	began := time.Now()
	if err := w.etcd.Open(ctx); err != nil {
		return bootstrap.Advised(err, w.config.Etcd.Dir)
	}
	took := time.Since(began)
	w.durations.start.Store(int64(took))
	w.counts.EtcdStarted(took)
	w.memberID.Store(w.etcd.ID().String())
	w.past.serves()
	w.beginBackups()
	w.beginLeases()
	watching, stop := context.WithCancel(context.Background())
	w.stopMonitor, w.monitored = stop, make(chan struct{})
	go func() {
		defer close(w.monitored)
		w.monitor.Run(watching, watched{w.etcd, w.certificates})
	}()
	return nil
}

// watched is what the monitor looks at.
type watched struct {
	*member.Member
	files *certificates.Files
}

// Certificates implements readiness.Target.
func (w watched) Certificates(now time.Time) (ended, soon string) { return w.files.Judge(now) }

// Usage is how to use the member, and the wrapper's server, once etcd is ready: the endpoint and the page's URL.
func (w *World) Usage() (endpoint, page string) {
	return w.config.Etcd.AdvertiseClientUrls[0].String(), fmt.Sprintf("http://127.0.0.1:%d/", w.flags.WrapperPort)
}

// Watch implements lifecycle.Member.
func (w *World) Watch(ctx context.Context) error {
	if w.backups == nil {
		return w.etcd.Watch(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	failed := make(chan error, 1)
	go func() { failed <- w.etcd.Watch(ctx) }()
	select {
	case err := <-failed:
		return err
	case why := <-w.backups.Superseded():
		stop(why)
		<-failed
		return why
	}
}

// Close implements lifecycle.Member. The monitor goes first: it must not look at an etcd that is being closed.
func (w *World) Close() (opened bool, err error) {
	if w.stopMonitor != nil {
		w.stopMonitor()
		<-w.monitored
	}
	if w.etcd == nil {
		return false, nil
	}
	began := time.Now()
	w.endLeases()
	w.endBackups()
	opened, err = w.etcd.Close()
	w.closed.settle(opened && err == nil, began)
	if opened {
		took, drained := time.Since(began), w.etcd.Drained()
		w.durations.stop.Store(int64(took))
		w.durations.drain.Store(int64(drained))
		w.counts.EtcdStopped(took, drained)
	}
	return opened, err
}
