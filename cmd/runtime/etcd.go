package runtime

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"etcd-wrapper/backup"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/member"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/member/maintenance"
	"etcd-wrapper/readiness/certificates"
	"etcd-wrapper/readiness/status/terminal"
	"etcd-wrapper/recovery/peers"
)

// Configure implements lifecycle.Member. If the copy of the configuration for debug containers cannot be stored,
// Configure logs a warning and continues.
func (r *Runtime) Configure(yaml []byte) error {
	if err := bootstrap.StoreConfig(r.flags.StoredConfigPath, yaml); err != nil {
		r.log.Warn().Err(err).Msg("cannot store the copy of etcd's configuration that etcd-wrapper etcdctl reads")
	}
	checked, err := etcdconf.Parse(yaml)
	if err == nil {
		err = checked.CheckPort(uint16(r.flags.WrapperPort))
	}
	if err == nil {
		err = CheckAck(r.flags.Backups.Ack, checked.Etcd)
	}
	if err != nil {
		return err
	}
	r.forceOnce(checked.Etcd)
	if !bytes.Equal(yaml, r.warned) { // log warnings once, although Configure is called again while the start is waiting
		r.warned = yaml
		r.warn(checked)
	}
	r.config = checked
	r.useCertificates(checked.Etcd)
	options := member.Options{
		Log: r.log, Crash: r.crash, CloseTimeout: lifecycle.ClosePatience, DataInUse: r.invalidateRecord,
		DataVersion: dataversion.Parse(r.flags.DataVersion()),
		Maintenance: maintenance.Options{
			Threshold: maintenance.Threshold{Free: r.flags.DefragThreshold.Free, Min: int64(r.flags.DefragThreshold.Min)},
			MaxPause:  r.flags.DefragThreshold.Pause, Gate: r.Gate(),
		},
		UpdateMembership: r.flags.Standalone, RequestPromotion: r.requestPromotion, AwaitPeers: r.awaitPeers,
		Unwanted: r.parts.Unwanted, RootPassword: r.parts.RootPassword,
	}
	if kept := r.parts.Backups; kept != nil {
		options.BeforeCompaction = kept.BeforeCompaction
		if gate := kept.Ack(); gate != nil {
			options.Confirmation = gate
		}
	}
	r.etcd.Store(member.New(checked.Etcd, options))
	r.record.Describe(r.describeData)
	return nil
}

// CheckAck rejects --backup-ack=stored in a cluster of several members, because no member can check that the writes
// acknowledged by other members are in the store.
func CheckAck(ack string, etcd *embed.Config) error {
	members, _ := types.NewURLsMap(etcd.InitialCluster) // etcd itself reports an invalid initial-cluster
	if ack != commandline.AckStored || len(members) <= 1 {
		return nil
	}
	return fmt.Errorf("%w: --backup-ack=stored requires a single-member cluster, but initial-cluster has %d members; use --backup-ack=local",
		etcdconf.ErrUnusable, len(members))
}

// describeData returns a fingerprint of the data, which the next start compares with the data it finds. If the data
// cannot be read now, the comparison fails, and the next start runs a full validation.
func (r *Runtime) describeData() []byte {
	taken, err := datadir.TakeFingerprint(r.config.Etcd.Dir, r.config.Etcd.WalDir)
	if err != nil {
		r.log.Warn().Err(err).Msg("cannot describe the data directory in the exit record; the next start runs a full validation")
	}
	return taken.Note()
}

// newPeers returns a client for requests to the other members. The client authenticates with the same certificate as
// recovery.
func (r *Runtime) newPeers() (*peers.Peers, error) {
	return peers.New(r.config.Etcd, peers.NewOptions(r.flags.EtcdCertPath, r.flags.EtcdKeyPath, r.parts.RootPassword))
}

func (r *Runtime) requestPromotion(ctx context.Context, cluster, member types.ID, members []membership.Member) error {
	others, err := r.newPeers()
	if err != nil {
		return err
	}
	if others == nil {
		return errors.New("initial-cluster lists no other member to request the promotion from")
	}
	defer others.Close()
	return others.Promote(ctx, &peers.Survey{Cluster: cluster.String(), Members: members, Own: peers.Member{ID: member}})
}

// awaitPeers waits until the cluster can accept a new member.
func (r *Runtime) awaitPeers(ctx context.Context, report func(reason string)) (dataversion.Version, error) {
	others, err := r.newPeers()
	if err != nil || others == nil {
		return dataversion.Version{}, nil //nolint:nilerr // etcd itself reports an invalid configuration
	}
	defer others.Close()
	return others.AwaitVersion(ctx, peers.DowngradeWait, report)
}

// invalidateRecord permanently invalidates the exit record. If the record cannot be removed, the removal is retried
// when etcd stops.
func (r *Runtime) invalidateRecord() {
	if err := r.record.Invalidate(); err != nil {
		r.log.Error().Err(err).Msg("cannot remove the exit record, which must not be trusted because another process is using the data directory")
	}
}

func (r *Runtime) warn(checked *etcdconf.Checked) {
	if len(checked.Sidecars) > 0 {
		r.log.Debug().Strs("keys", checked.Sidecars).Msg("ignoring keys in etcd's configuration that are meant for the sidecar")
	}
	warnings := r.warnings(checked.Etcd)
	for _, warning := range warnings {
		r.log.Warn().Msg(warning)
	}
	all := append(slices.Clone(checked.Warnings), warnings...)
	r.configWarnings.Store(&all)
	for _, warning := range checked.Warnings {
		r.log.Warn().Msg("etcd's configuration: " + warning)
	}
}

// useCertificates registers the certificate files of etcd's listeners and clients.
func (r *Runtime) useCertificates(etcd *embed.Config) {
	server, _, _ := r.config.ServerCertificate()
	files := map[string]string{certificates.EtcdServer: server, certificates.EtcdServerCA: "", certificates.EtcdPeer: "", certificates.EtcdPeerCA: ""}
	if slices.ContainsFunc(etcd.ListenClientUrls, etcdconf.UsesTLS) {
		files[certificates.EtcdServerCA] = etcd.ClientTLSInfo.TrustedCAFile
	}
	if slices.ContainsFunc(etcd.ListenPeerUrls, etcdconf.UsesTLS) {
		files[certificates.EtcdPeer], files[certificates.EtcdPeerCA] = etcd.PeerTLSInfo.CertFile, etcd.PeerTLSInfo.TrustedCAFile
	}
	r.certificates.Add(files)
}

// listeners returns the TLS listeners of etcd. Listeners with self-generated certificates are omitted, because no
// client verifies those certificates.
func (r *Runtime) listeners() (all []certificates.Listener) {
	etcd := r.config.Etcd
	add := func(name string, listens, advertised []url.URL, files transport.TLSInfo) {
		at := slices.IndexFunc(listens, func(at url.URL) bool { return at.Scheme == "https" && at.Port() != "0" })
		if at < 0 {
			return
		}
		l := certificates.Listener{Name: name, Address: listens[at].Host, Cert: files.CertFile, Key: files.KeyFile, CA: files.TrustedCAFile}
		l.ClientCert, l.ClientKey = cmp.Or(files.ClientCertFile, l.Cert), cmp.Or(files.ClientKeyFile, l.Key)
		for _, each := range advertised {
			if each.Scheme == "https" && !slices.Contains(l.Hosts, each.Hostname()) {
				l.Hosts = append(l.Hosts, each.Hostname())
			}
		}
		all = append(all, l)
	}
	if !etcd.ClientAutoTLS {
		add(certificates.EtcdServer, etcd.ListenClientUrls, etcd.AdvertiseClientUrls, etcd.ClientTLSInfo)
	}
	if !etcd.PeerAutoTLS {
		add(certificates.EtcdPeer, etcd.ListenPeerUrls, etcd.AdvertisePeerUrls, etcd.PeerTLSInfo)
	}
	return all
}

// forceOnce clears force-new-cluster if an earlier start has already applied it. Applying force-new-cluster again
// would remove the members that have joined since.
func (r *Runtime) forceOnce(etcd *embed.Config) {
	note := bootstrap.ForceNoteOn(r.flags.VolumeDir)
	if etcd.ForceNewCluster {
		etcd.ForceNewCluster = !note.Exists()
	} else if err := note.Remove(); err != nil {
		r.log.Warn().Err(err).Msg("cannot delete the record of force-new-cluster; the setting will be ignored if you set it again")
	}
}

// warnings returns warnings about settings that are valid but rarely intended.
func (r *Runtime) warnings(etcd *embed.Config) (warnings []string) {
	switch {
	case etcd.ForceNewCluster:
		warnings = append(warnings, "force-new-cluster is set: this start removes all other members from the cluster; delete the setting from etcd's configuration afterwards")
	case bootstrap.ForceNoteOn(r.flags.VolumeDir).Exists():
		warnings = append(warnings, "ignoring force-new-cluster, because an earlier start applied it; delete the setting from etcd's configuration (you can set it again after a start without it)")
	}
	if etcd.ClusterState == embed.ClusterStateFlagNew && r.lastRun.lost(etcd.Dir) {
		warnings = append(warnings, fmt.Sprintf("the data directory %s is empty, but an earlier run on this volume served data from it; a new cluster will be "+
			"created unless a backup is restored; to recover the old data, stop etcd-wrapper, restore the data, and start etcd-wrapper again", etcd.Dir))
	}
	held, err := r.volume.Contains(etcd.Dir)
	if err != nil {
		warnings = append(warnings, err.Error())
	} else if !held {
		warnings = append(warnings, fmt.Sprintf("the data directory %s and the exit record %s are on different volumes, so the record can outlive "+
			"the data; put both on the same volume", etcd.Dir, r.flags.RecordPath()))
	}
	return warnings
}

// Open implements lifecycle.Member.
func (r *Runtime) Open(ctx context.Context) error {
	began, etcd := time.Now(), r.etcd.Load()
	if err := etcdconf.CheckFounding(ctx, r.config.Etcd); err != nil {
		return &exitcode.FinalError{Status: exitcode.BadConfig, Err: err}
	}
	if err := etcd.Open(ctx); err != nil {
		if errors.Is(err, member.ErrSeveralMembers) {
			return &exitcode.FinalError{Status: exitcode.BadConfig, Err: err}
		}
		return bootstrap.ExplainError(err, r.config.Etcd.Dir)
	}
	if r.config.Etcd.ForceNewCluster {
		if err := bootstrap.ForceNoteOn(r.flags.VolumeDir).Write(); err != nil {
			r.log.Error().Err(err).Msg("cannot record that force-new-cluster was applied; delete the setting from etcd's configuration before the next start, which would remove all other members again")
		}
	}
	took := time.Since(began)
	r.durations.start.Store(int64(took))
	r.counts.EtcdStarted(took)
	r.memberID.Store(etcd.ID().String())
	r.lastRun.recordServing(r.config.Etcd.Dir)
	r.certificates.Serve(r.listeners())
	r.beginBackups()
	if r.parts.Leases != nil {
		r.parts.Leases.Start()
	}
	watching, stop := context.WithCancel(context.Background())
	var monitoring sync.WaitGroup
	monitoring.Go(func() { r.monitor.Run(watching, target{etcd, r.certificates, r.parts.Backups}) })
	r.endMonitor = func() {
		stop()
		monitoring.Wait()
	}
	return nil
}

// A target implements readiness.Target for the monitor.
type target struct {
	*member.Member
	files   *certificates.Files
	backups *backup.Backups // nil without a store
}

// Certificates implements readiness.Target.
func (r target) Certificates(now time.Time) (ended, soon string) { return r.files.Check(now) }

// A volume is low on space if its free space is less than largest bytes and less than a tenth of its size, or cannot
// hold a copy of the database and two segments of etcd's log. Full snapshots and defragmentations need space for a
// copy of the database.
const (
	largest     = 4 << 30
	logSegments = 2 * 64 << 20
)

// LowSpace implements readiness.Target.
func (r target) LowSpace() string { return describeLowSpace(r.Maintainer.Volume()) }

// RedirectReason implements readiness.Target.
func (r target) RedirectReason() string { return r.Maintainer.RedirectReason() }

// Unconfirmed implements readiness.Target.
func (r target) Unconfirmed() string {
	if r.backups == nil {
		return ""
	}
	return r.backups.Unconfirmed()
}

func describeLowSpace(volume maintenance.Volume) string {
	if need := max(min(volume.Size/10, largest), volume.Copy+logSegments); volume.Size == 0 || volume.Free >= need {
		return ""
	}
	return fmt.Sprintf("%s of %s free: enlarge the volume, or delete files that etcd does not need", terminal.Size(volume.Free), terminal.Size(volume.Size))
}

// Usage returns the member's client URL and the URL of the status page. Usage must not be called until etcd is ready.
func (r *Runtime) Usage() (endpoint, page string) {
	return r.config.Etcd.AdvertiseClientUrls[0].String(), fmt.Sprintf("http://127.0.0.1:%d/", r.flags.WrapperPort)
}

// Watch implements lifecycle.Member.
func (r *Runtime) Watch(ctx context.Context) error {
	releaseStartup()
	return bootstrap.ExplainError(r.watch(ctx), r.config.Etcd.Dir)
}

func (r *Runtime) watch(ctx context.Context) error {
	etcd := r.etcd.Load()
	if r.parts.Backups == nil {
		return etcd.Watch(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, 1)
	go func() { ended <- etcd.Watch(ctx) }()
	select {
	case failed := <-ended:
		return failed
	case why := <-r.parts.Backups.Superseded():
		stop(why)
		<-ended //nolint:errcheck // Watch was stopped on purpose
		if r.parts.Recovery != nil {
			if err := r.parts.Recovery.RecordMismatch(r.config.Etcd.Dir, why); err != nil {
				r.log.Error().Err(err).Msg("cannot record on the volume that the data was rejected")
			}
		}
		return why
	}
}

// Close implements lifecycle.Member. Close stops the monitor before etcd is closed, because the monitor must not
// check an etcd that is being closed.
func (r *Runtime) Close() (opened bool, err error) {
	if r.endMonitor != nil {
		r.endMonitor()
	}
	etcd := r.etcd.Load()
	if etcd == nil {
		return false, nil
	}
	began := time.Now()
	if r.parts.Leases != nil { // stop renewing, so that the expired Lease shows that the member has stopped
		r.parts.Leases.Stop()
	}
	r.endBackups()
	opened, err = etcd.Close()
	r.closed = closed{inOrder: opened && err == nil, began: began}
	if opened {
		took, drained := time.Since(began), etcd.Drained()
		r.durations.stop.Store(int64(took))
		r.durations.drain.Store(int64(drained))
		r.counts.EtcdStopped(took, drained)
	}
	return opened, err
}
