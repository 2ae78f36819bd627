package commandline

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// DefaultTerminationPath is Kubernetes' default terminationMessagePath.
const DefaultTerminationPath = "/dev/termination-log"

// StartEtcd holds the flags of `start-etcd`. The first nine flags have the same names, types, defaults and meanings as
// in gardener/etcd-wrapper, so the operator's pods work unchanged.
type StartEtcd struct {
	WrapperPort      Port          `name:"etcd-wrapper-port" group:"The wrapper's own server" default:"9095" help:"Port that the wrapper's own server listens on."`
	SidecarTLS       bool          `name:"backup-restore-tls-enabled" group:"The sidecar" negatable:"" help:"Use HTTPS to connect to the sidecar."`
	SidecarHostPort  string        `name:"backup-restore-host-port" group:"The sidecar" default:":8080" help:"Address (host:port) of the sidecar, without a scheme. An empty host means localhost."`
	SidecarCAPath    string        `name:"backup-restore-ca-cert-bundle-path" group:"The sidecar" placeholder:"PATH" help:"CA bundle for verifying the sidecar's certificate. Required if TLS is enabled."`
	EtcdServerName   string        `name:"etcd-server-name" group:"etcd" help:"Host name in etcd's server certificate. start-etcd ignores this flag, because it checks readiness inside the process. If the environment variable is set, etcd-wrapper etcdctl connects to this host."`
	EtcdClientPort   Port          `name:"etcd-client-port" group:"etcd" default:"2379" help:"etcd's client port. start-etcd ignores this flag. etcd-wrapper etcdctl uses the environment variable together with that of --etcd-server-name."`
	EtcdCertPath     string        `name:"etcd-client-cert-path" group:"etcd" placeholder:"PATH" help:"Client certificate for etcd. If set, etcd is expected to serve TLS."`
	EtcdKeyPath      string        `name:"etcd-client-key-path" group:"etcd" placeholder:"PATH" help:"Private key of the client certificate."`
	EtcdReadyTimeout time.Duration `name:"etcd-ready-timeout" group:"etcd" default:"0s" help:"Fail if etcd is not ready within this time. 0 means no limit."`

	VolumeDir        string    `name:"volume-dir" group:"Files" default:"/var/etcd/data" help:"Directory of the data volume. It contains the exit record exit_code and, with --standalone, the data directory new.etcd."`
	StoredConfigPath string    `name:"stored-config-path" group:"Files" default:"${home}/etcd.conf.yaml" help:"Store a copy of etcd's configuration in this file. etcdctl reads the endpoint and the certificates from it."`
	Standalone       bool      `name:"standalone" group:"Without a sidecar" help:"Run without a sidecar. The wrapper validates the data directory itself."`
	EtcdConfigFile   string    `name:"etcd-config-file" group:"Without a sidecar" placeholder:"PATH" help:"With --standalone: read etcd's configuration from this file. If not set, run a single member on loopback."`
	RootPasswordFile string    `name:"root-password-file" group:"etcd" placeholder:"PATH" help:"With --standalone: file with the password of the root user. A new cluster is created with this user and with authentication enabled; a cluster that already has keys or users is not changed."`
	EtcdDataVersion  string    `name:"etcd-data-version" group:"etcd" enum:",3.5,3.6" default:"" placeholder:"VERSION" help:"Oldest etcd version that must be able to read the data: 3.5 or 3.6. Defaults to 3.5 with a sidecar and to 3.6 with --standalone."`
	DefragThreshold  Threshold `name:"defrag-threshold" group:"etcd" default:"free=45%,min=100Mi,pause=15s" placeholder:"WHEN" help:"Defragment the database when at least the percentage free and at least min bytes of it are unused, unless clients would be paused for longer than pause. never disables automatic defragmentation."`

	Kubernetes []string `name:"kubernetes" group:"etcd" enum:"events,leases,replicas" placeholder:"WHAT,..." help:"Use the Kubernetes API in a pod. events: post Events on the pod about restores, rejected data, alarms, defragmentation and conditions. leases (with --standalone): renew the leases of the member and its backups, which the operator's tools read. replicas (with --standalone): leave the cluster when this member stops because its StatefulSet was scaled down."`

	Backups  Backups  `embed:""`
	Recovery Recovery `embed:""`

	LogLevel        string `name:"log-level" group:"Log and termination message" enum:"debug,info,warn,error" default:"info" help:"Minimum log level: debug, info, warn or error."`
	LogFormat       string `name:"log-format" group:"Log and termination message" enum:"json,console" default:"json" help:"Log format: json (one object per line) or console (for terminals). console omits etcd's own info lines unless --log-level is debug."`
	TerminationPath string `name:"termination-message-path" group:"Log and termination message" default:"${termination}" help:"Write the reason why the container ended to this file, if the file exists. Kubernetes shows the reason in the pod's status."`
}

// Validate is called by kong. Each error names the flag.
func (f *StartEtcd) Validate() error {
	switch {
	case f.WrapperPort == 0:
		return errors.New("--etcd-wrapper-port must not be 0")
	case f.EtcdReadyTimeout < 0:
		return fmt.Errorf("--etcd-ready-timeout must not be negative: %s", f.EtcdReadyTimeout)
	case (f.EtcdCertPath == "") != (f.EtcdKeyPath == ""):
		return errors.New("--etcd-client-cert-path and --etcd-client-key-path must be set together")
	case f.EtcdConfigFile != "" && !f.Standalone:
		return errors.New("--etcd-config-file requires --standalone: a sidecar serves the configuration itself")
	case f.RootPasswordFile != "" && !f.Standalone:
		return errors.New("--root-password-file requires --standalone: a sidecar cannot log in")
	case slices.Contains(f.Kubernetes, "leases") && !f.Standalone:
		return errors.New("--kubernetes=leases requires --standalone: a sidecar renews the leases itself (with --enable-member-lease-renewal)")
	case slices.Contains(f.Kubernetes, "replicas") && !f.Standalone:
		return errors.New("--kubernetes=replicas requires --standalone: with a sidecar, the operator removes members")
	case f.StoredConfigPath == "" || f.VolumeDir == "":
		return errors.New("--stored-config-path and --volume-dir must not be empty")
	}
	if err := f.Backups.validateFor(f.Standalone); err != nil {
		return err
	}
	if err := f.Recovery.validateFor(f.Standalone, f.Backups.Store); err != nil {
		return err
	}
	dir, err := filepath.Abs(f.VolumeDir) // the data directory must not depend on the working directory
	if err != nil {
		return fmt.Errorf("--volume-dir: %w", err)
	}
	f.VolumeDir = dir
	return nil
}

// ExpectsTLS reports whether etcd is expected to serve TLS. It is only used until etcd's configuration is known.
func (f *StartEtcd) ExpectsTLS() bool { return f.EtcdCertPath != "" || f.SidecarTLS }

// DataVersion returns the oldest etcd version that must be able to read the data. With a sidecar, it defaults to 3.5,
// because the sidecar opens the data with etcd 3.5.
func (f *StartEtcd) DataVersion() string {
	switch {
	case f.EtcdDataVersion != "":
		return f.EtcdDataVersion
	case f.Standalone:
		return "3.6"
	default:
		return "3.5"
	}
}

// Level returns the minimum log level.
func (f *StartEtcd) Level() zerolog.Level {
	level, _ := zerolog.ParseLevel(f.LogLevel) // kong has already validated the level
	return level
}

// Address returns the listen address of the wrapper's own server in the form <host>:<port>.
func (f *StartEtcd) Address() string { return net.JoinHostPort("", strconv.Itoa(int(f.WrapperPort))) }

// RecordPath returns the path of the exit record, which has the same name as in gardener/etcd-wrapper.
func (f *StartEtcd) RecordPath() string { return filepath.Join(f.VolumeDir, "exit_code") }

// CrashNotePath returns the path of the file that records the reason for a crash.
func (f *StartEtcd) CrashNotePath() string { return f.RecordPath() + ".crash" }

// LastRunPath returns the path of the file that records how a run ended, which the next run reads.
func (f *StartEtcd) LastRunPath() string { return f.RecordPath() + ".last" }

// DataDir returns the path of etcd's data directory in a pod without a sidecar.
func (f *StartEtcd) DataDir() string { return filepath.Join(f.VolumeDir, "new.etcd") }

// Recovery holds the flags that control the recovery of damaged or lost data.
type Recovery struct {
	Recover   string  `name:"recover" group:"Backups" enum:"auto,never" default:"auto" help:"Recover damaged, lost or rolled-back data. auto: from --backup-store or from the other members, if that is safe. never: leave the data unchanged."`
	RestoreTo *Target `name:"restore-to" group:"Backups" placeholder:"TARGET" help:"Restore this state once, before etcd starts: latest, revision:N or time:2026-11-22T12:00:00Z. Requires --restore-id."`
	RestoreID string  `name:"restore-id" group:"Backups" placeholder:"NAME" help:"Name of the restore. A restore with the same name runs only once."`

	ClusterName string `name:"cluster-name" group:"Backups" placeholder:"NAMESPACE/NAME" help:"Name of the store's owner. A member without data rejects a store that has another owner. Defaults to POD_NAMESPACE/initial-cluster-token."`
	Adopt       string `name:"adopt" group:"Backups" placeholder:"ID" help:"Take over the store of the cluster with this ID, once. If the volume is empty, the data is restored from the store. Valid data that does not belong to the store, or is a copy, starts a new generation in it. To take over the store again, set ID/N, where N is the newest generation."`
}

// Owner returns the owner of the store, which is derived from the cluster token. The cluster token may include the
// namespace.
func (f *Recovery) Owner(token string) string {
	namespace := os.Getenv("POD_NAMESPACE")
	switch {
	case f.ClusterName != "":
		return f.ClusterName
	case strings.HasPrefix(token, namespace+"/"):
		return token
	}
	return path.Join(namespace, token)
}

// adoptable matches valid values of --adopt: "", a cluster ID, or a cluster ID followed by a generation.
var adoptable = regexp.MustCompile(`^([0-9a-f]{32}(/[1-9][0-9]*)?)?$`)

// maxRestoreID is the maximum length of a restore ID in bytes.
const maxRestoreID = 100

// validateFor validates the flags of a run with the given --standalone and --backup-store flags. The error names the
// flag that is invalid.
func (f *Recovery) validateFor(standalone bool, store string) error {
	switch {
	case !standalone && f.Recover == "never":
		return errors.New("--recover=never requires --standalone: a sidecar handles damaged or lost data itself")
	case store == "" && (f.ClusterName != "" || f.Adopt != ""):
		return errors.New("--cluster-name and --adopt require --backup-store")
	case !adoptable.MatchString(f.Adopt):
		return fmt.Errorf("--adopt: %q is not valid: use the cluster ID from the store's cluster.json or, to end generation N, ID/N", f.Adopt)
	case f.RestoreTo == nil && f.RestoreID == "":
		return nil
	case f.RestoreTo == nil || f.RestoreID == "":
		return errors.New("--restore-to and --restore-id must be set together: the ID prevents a restart from repeating the restore")
	case store == "":
		return errors.New("--restore-to requires --backup-store")
	case len(f.RestoreID) > maxRestoreID:
		return fmt.Errorf("--restore-id must not be longer than %d characters", maxRestoreID)
	}
	return nil
}

// StoreFlags contains the flags for reading backups, which start-etcd and the backup commands share. URLs and keys
// are validated by the packages in backup, whose errors start with the name of the flag.
type StoreFlags struct {
	Store       string `name:"backup-store" group:"Backups" placeholder:"URL" help:"URL of the backup store: file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azblob://CONTAINER/PREFIX. Optional query parameters: endpoint=, region=, path-style=, account= and ca=. start-etcd also requires --standalone."`
	Identities  string `name:"backup-identities" group:"Backups" placeholder:"PATH" help:"File with the age identities that decrypt backups."`
	TrustedKeys string `name:"backup-trusted-keys" group:"Backups" placeholder:"PATH" help:"File with ed25519 public keys (PEM). Backups that are not signed with one of these keys are rejected."`
}

// Reading returns the flags as command-line arguments for a child process of this program that reads the store.
func (f *StoreFlags) Reading() []string {
	args := []string{"--backup-store=" + f.Store}
	if f.Identities != "" {
		args = append(args, "--backup-identities="+f.Identities)
	}
	if f.TrustedKeys != "" {
		args = append(args, "--backup-trusted-keys="+f.TrustedKeys)
	}
	return args
}

// SigningFlags contains the flag that is common to the commands that write signed objects to a store.
type SigningFlags struct {
	SigningKey string `name:"backup-signing-key" group:"Backups" placeholder:"PATH" help:"File with the ed25519 private key (PEM) that signs backups."`
}

// DefaultKeep is the default value of --backup-keep.
const DefaultKeep = "points=24h,hourly=24,daily=7,weekly=4"

// KeepFlags contains the flag that is common to the commands that delete backups. The flag has no default, because
// backup prune must never apply a default policy to an arbitrary store.
type KeepFlags struct {
	Keep string `name:"backup-keep" group:"Backups" placeholder:"${keep}" help:"Retention policy. points is the period in which every revision is kept. hourly, daily and weekly set how many older full snapshots are kept: the last verified one of each hour, day and week."`
}

// Backups contains the backup flags of start-etcd.
type Backups struct {
	StoreFlags   `embed:""`
	SigningFlags `embed:""`
	KeepFlags    `embed:""`
	Ack          string         `name:"backup-ack" group:"Backups" enum:"local,stored" default:"local" help:"When to acknowledge a write. local: once it is on the volume. stored: once it is in the store, so losing the volume loses no data (single-member clusters only)."`
	Interval     *time.Duration `name:"backup-interval" group:"Backups" placeholder:"1s" help:"Upload each change within this time. With --backup-ack=stored: the minimum time between two uploads, 0 by default."`
	FullSchedule string         `name:"backup-full-schedule" group:"Backups" default:"0 * * * *" help:"Schedule of full snapshots: five cron fields in UTC, @hourly, @daily, @weekly or @every 6h. Each cluster adds a fixed offset of less than an hour."`
	Recipients   string         `name:"backup-recipients" group:"Backups" placeholder:"PATH" help:"File with the age recipients to encrypt backups for."`
	SpoolLimit   Bytes          `name:"backup-spool-limit" group:"Backups" default:"1Gi" help:"Maximum size of the spool on the volume while the store is unreachable."`
}

// Limits of --backup-interval and --backup-spool-limit. minInterval equals the interval at which the writer records
// time markers (tick in package backup/writer). A spool of size minSpool has room for at least one segment.
const (
	minInterval = 100 * time.Millisecond // not enforced with --backup-ack=stored
	maxInterval = time.Hour
	minSpool    = Bytes(32 << 20)
)

// AckStored is the value of --backup-ack that delays the acknowledgment of a write until the write is in the store.
const AckStored = "stored"

// validateFor validates the flags and, if Interval is nil, sets it to the default. The error names the flag that is
// invalid. Flags that would have no effect are rejected too.
func (f *Backups) validateFor(standalone bool) error {
	interval, shortest := time.Second, minInterval
	if f.Ack == AckStored {
		interval, shortest = 0, 0
	}
	if f.Interval == nil {
		f.Interval = &interval
	}
	switch {
	case f.Store != "" && !standalone:
		return errors.New("--backup-store requires --standalone: a sidecar makes the backups itself")
	case f.Ack == AckStored && f.Store == "":
		return errors.New("--backup-ack=stored requires --backup-store")
	case *f.Interval < shortest || *f.Interval > maxInterval:
		return fmt.Errorf("--backup-interval: %v is not between %v and %v", *f.Interval, shortest, maxInterval)
	case f.SpoolLimit < minSpool:
		return fmt.Errorf("--backup-spool-limit: %v is less than the minimum of %v", f.SpoolLimit, minSpool)
	}
	for flag, path := range map[string]string{
		"--backup-recipients": f.Recipients, "--backup-identities": f.Identities,
		"--backup-signing-key": f.SigningKey, "--backup-trusted-keys": f.TrustedKeys,
	} {
		if path != "" && f.Store == "" {
			return fmt.Errorf("%s requires --backup-store", flag)
		}
	}
	return nil
}
