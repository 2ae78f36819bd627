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

// DefaultTerminationPath is the terminationMessagePath of a pod that sets none.
const DefaultTerminationPath = "/dev/termination-log"

// StartEtcd holds the flags of `start-etcd`. The first nine are those of gardener/etcd-wrapper, with the same names,
// types, defaults and meaning, so the operator's pods need no change.
type StartEtcd struct {
	WrapperPort      Port          `name:"etcd-wrapper-port" group:"The wrapper's own server" default:"9095" help:"Port of the wrapper's own server."`
	SidecarTLS       bool          `name:"backup-restore-tls-enabled" group:"The sidecar" negatable:"" help:"Talk HTTPS to the sidecar."`
	SidecarHostPort  string        `name:"backup-restore-host-port" group:"The sidecar" default:":8080" help:"Where the sidecar listens, without scheme; an empty host means localhost."`
	SidecarCAPath    string        `name:"backup-restore-ca-cert-bundle-path" group:"The sidecar" placeholder:"PATH" help:"CA bundle for the sidecar's certificate; required with TLS."`
	EtcdServerName   string        `name:"etcd-server-name" group:"etcd" help:"Name in etcd's server certificate. Kept for the operator: readiness is seen from inside the process."`
	EtcdClientPort   Port          `name:"etcd-client-port" group:"etcd" default:"2379" help:"etcd's client port. Kept for the operator."`
	EtcdCertPath     string        `name:"etcd-client-cert-path" group:"etcd" placeholder:"PATH" help:"Client certificate for etcd. Its presence announces that etcd serves TLS."`
	EtcdKeyPath      string        `name:"etcd-client-key-path" group:"etcd" placeholder:"PATH" help:"Key of the client certificate."`
	EtcdReadyTimeout time.Duration `name:"etcd-ready-timeout" group:"etcd" default:"0s" help:"Fail if etcd takes longer to become ready. 0 waits forever."`

	VolumeDir        string    `name:"volume-dir" group:"Files" default:"/var/etcd/data" help:"Directory of the volume: holds the exit record exit_code and, with --standalone, the data directory new.etcd."`
	StoredConfigPath string    `name:"stored-config-path" group:"Files" default:"${home}/etcd.conf.yaml" help:"Keep a copy of etcd's configuration here. etcdctl takes endpoint and certificates from it."`
	Standalone       bool      `name:"standalone" group:"Without a sidecar" help:"Run without a sidecar: validate the data directory in this program."`
	EtcdConfigFile   string    `name:"etcd-config-file" group:"Without a sidecar" placeholder:"PATH" help:"With --standalone: etcd's configuration; default is a single member on loopback."`
	RootPasswordFile string    `name:"root-password-file" group:"etcd" placeholder:"PATH" help:"With --standalone: create the user root in a new cluster, with the password in this file, and enable authentication. A cluster with keys or users stays as it is."`
	EtcdDataVersion  string    `name:"etcd-data-version" group:"etcd" enum:",3.5,3.6" default:"" placeholder:"VERSION" help:"Oldest etcd that has to be able to read the data, 3.5 or 3.6; default is 3.5 with a sidecar and 3.6 with --standalone."`
	DefragThreshold  Threshold `name:"defrag-threshold" group:"etcd" default:"free=45%,min=100Mi,pause=15s" placeholder:"WHEN" help:"Defragment the database when this part of it and at least min bytes are free, unless clients would wait longer than the pause; or never."`

	Kubernetes []string `name:"kubernetes" group:"etcd" enum:"events,leases,replicas" placeholder:"WHAT,..." help:"In a pod, use the API server. events: post Events on the pod about restores, refused data, alarms, defragmentations and conditions. With --standalone also leases: renew those of the member and its backups, which the operator's tools read; and replicas: leave the cluster when this member stops and the replicas of its StatefulSet no longer include it."`

	Backups  Backups  `embed:""`
	Recovery Recovery `embed:""`

	LogLevel        string `name:"log-level" group:"Log and termination message" enum:"debug,info,warn,error" default:"info" help:"Least severe level that is logged: debug, info, warn or error."`
	LogFormat       string `name:"log-format" group:"Log and termination message" enum:"json,console" default:"json" help:"json, a line for each event, or console, for people at a terminal: without etcd's own info lines, unless --log-level is debug."`
	TerminationPath string `name:"termination-message-path" group:"Log and termination message" default:"${termination}" help:"Write why the container ended to this file, if it exists: Kubernetes reads it."`
}

// Validate is called by kong. Each error names the flag.
func (f *StartEtcd) Validate() error {
	switch {
	case f.WrapperPort == 0:
		return errors.New("--etcd-wrapper-port: 0 is not a port")
	case f.EtcdReadyTimeout < 0:
		return fmt.Errorf("--etcd-ready-timeout: %s is negative", f.EtcdReadyTimeout)
	case (f.EtcdCertPath == "") != (f.EtcdKeyPath == ""):
		return errors.New("--etcd-client-cert-path and --etcd-client-key-path: one without the other")
	case f.EtcdConfigFile != "" && !f.Standalone:
		return errors.New("--etcd-config-file: only with --standalone; otherwise the sidecar serves the configuration")
	case f.RootPasswordFile != "" && !f.Standalone:
		return errors.New("--root-password-file: only with --standalone; a sidecar cannot log in")
	case slices.Contains(f.Kubernetes, "leases") && !f.Standalone:
		return errors.New("--kubernetes=leases: only with --standalone; otherwise the sidecar renews them (its --enable-member-lease-renewal)")
	case slices.Contains(f.Kubernetes, "replicas") && !f.Standalone:
		return errors.New("--kubernetes=replicas: only with --standalone; otherwise the operator removes members")
	case f.StoredConfigPath == "" || f.VolumeDir == "":
		return errors.New("--stored-config-path and --volume-dir: must not be empty")
	}
	if err := f.Backups.validateFor(f.Standalone); err != nil {
		return err
	}
	if err := f.Recovery.validateFor(f.Standalone, f.Backups.Store); err != nil {
		return err
	}
	dir, err := filepath.Abs(f.VolumeDir) // etcd's data directory must not depend on the working directory
	if err != nil {
		return fmt.Errorf("--volume-dir: %w", err)
	}
	f.VolumeDir = dir
	return nil
}

// ExpectsTLS reports whether etcd can be expected to serve TLS before its configuration is known.
func (f *StartEtcd) ExpectsTLS() bool { return f.EtcdCertPath != "" || f.SidecarTLS }

// DataVersion returns the oldest etcd version that must be able to read the data. The sidecar opens the data with
// etcd 3.5.
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

// Level returns the minimum level of log lines.
func (f *StartEtcd) Level() zerolog.Level {
	level, _ := zerolog.ParseLevel(f.LogLevel) // kong has already validated the level
	return level
}

// Address returns the address of the wrapper's own server, <host>:<port>.
func (f *StartEtcd) Address() string { return net.JoinHostPort("", strconv.Itoa(int(f.WrapperPort))) }

// RecordPath returns the path of the exit record. gardener/etcd-wrapper uses the same name.
func (f *StartEtcd) RecordPath() string { return filepath.Join(f.VolumeDir, "exit_code") }

// CrashNotePath returns the path of the file that holds the reason of a crash.
func (f *StartEtcd) CrashNotePath() string { return f.RecordPath() + ".crash" }

// LastRunPath returns the path of the file that describes how this run ended. The next run reads it.
func (f *StartEtcd) LastRunPath() string { return f.RecordPath() + ".last" }

// DataDir returns etcd's data directory if no sidecar configures it.
func (f *StartEtcd) DataDir() string { return filepath.Join(f.VolumeDir, "new.etcd") }

// Recovery holds the flags that control how damaged or lost data is handled.
type Recovery struct {
	Recover   string  `name:"recover" group:"Backups" enum:"auto,never" default:"auto" help:"Recover broken, lost or rolled-back data. auto: from --backup-store or from the other members, where that is safe. never: leave the data alone."`
	RestoreTo *Target `name:"restore-to" group:"Backups" placeholder:"TARGET" help:"Restore this state once, before etcd starts: latest, revision:N or time:2026-11-22T12:00:00Z; with --restore-id."`
	RestoreID string  `name:"restore-id" group:"Backups" placeholder:"NAME" help:"Name of the restore, which is done only once."`

	ClusterName string `name:"cluster-name" group:"Backups" placeholder:"NAMESPACE/NAME" help:"Name the owner of the store. A member without data does not take the store of another owner. Default is POD_NAMESPACE and initial-cluster-token."`
	Adopt       string `name:"adopt" group:"Backups" placeholder:"ID" help:"Take over the store of the cluster with this id, once. Data that no store knows, or that is a copy, starts a generation of its own; an empty volume is restored from the store. ID/N does so again, and ends generation N."`
}

// Owner returns the owner of the store for a cluster token. The token may contain the namespace.
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

// adoptable matches the values of --adopt.
var adoptable = regexp.MustCompile(`^([0-9a-f]{32}(/[1-9][0-9]*)?)?$`)

// maxRestoreID is the maximum length of the ID of a restore in bytes.
const maxRestoreID = 100

// validateFor checks the flags. The error names the flag.
func (f *Recovery) validateFor(standalone bool, store string) error {
	switch {
	case !standalone && f.Recover == "never":
		return errors.New("--recover: only with --standalone; otherwise the sidecar decides what happens with broken or lost data")
	case store == "" && (f.ClusterName != "" || f.Adopt != ""):
		return errors.New("--cluster-name and --adopt: only with --backup-store")
	case !adoptable.MatchString(f.Adopt):
		return fmt.Errorf("--adopt: %q is neither the id of a cluster, as in the store's cluster.json, nor one with the generation to end, as in ID/2", f.Adopt)
	case f.RestoreTo == nil && f.RestoreID == "":
		return nil
	case f.RestoreTo == nil || f.RestoreID == "":
		return errors.New("--restore-to and --restore-id: one without the other; a restore has a name so that a restart does not do it again")
	case store == "":
		return errors.New("--restore-to: only with --backup-store")
	case len(f.RestoreID) > maxRestoreID:
		return fmt.Errorf("--restore-id: more than %d characters", maxRestoreID)
	}
	return nil
}

// StoreFlags holds the flags for reading backups, which start-etcd shares with the backup commands. The packages
// below backup reject invalid URLs and keys, with errors that start with the flag.
type StoreFlags struct {
	Store       string `name:"backup-store" group:"Backups" placeholder:"URL" help:"URL of the backups: file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azblob://CONTAINER/PREFIX, with endpoint=, region=, path-style=, account= and ca= after a question mark. In start-etcd only with --standalone."`
	Identities  string `name:"backup-identities" group:"Backups" placeholder:"PATH" help:"File of age identities to decrypt backups with."`
	TrustedKeys string `name:"backup-trusted-keys" group:"Backups" placeholder:"PATH" help:"File of ed25519 public keys (PEM). Backups that none of them signed are rejected."`
}

// Reading returns the flags as arguments for a child process of this program.
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

// SigningFlags holds the flag of commands that write to a store.
type SigningFlags struct {
	SigningKey string `name:"backup-signing-key" group:"Backups" placeholder:"PATH" help:"File of the ed25519 private key (PEM) to sign backups with."`
}

// DefaultKeep is the default of --backup-keep.
const DefaultKeep = "points=24h,hourly=24,daily=7,weekly=4"

// KeepFlags holds the flag of commands that delete backups. It has no default: backup prune must not apply a default
// policy to any store that it is given.
type KeepFlags struct {
	Keep string `name:"backup-keep" group:"Backups" placeholder:"${keep}" help:"Keep every revision within points, and of earlier times the last verified full snapshot of each hour, day and week, as many as given."`
}

// Backups holds the flags of start-etcd about backups.
type Backups struct {
	StoreFlags   `embed:""`
	SigningFlags `embed:""`
	KeepFlags    `embed:""`
	Ack          string         `name:"backup-ack" group:"Backups" enum:"local,stored" default:"local" help:"Acknowledge a change once it is on the volume (local), or once it is in the store, so that the loss of the volume loses nothing (stored, for clusters of one member)."`
	Interval     *time.Duration `name:"backup-interval" group:"Backups" placeholder:"1s" help:"Upload a change within this time. With --backup-ack=stored: the shortest time between two uploads, 0 by default."`
	FullSchedule string         `name:"backup-full-schedule" group:"Backups" default:"0 * * * *" help:"Make full snapshots at these times: five cron fields in UTC, @hourly, @daily, @weekly or @every 6h. Each cluster is shifted by its own part of an hour."`
	Recipients   string         `name:"backup-recipients" group:"Backups" placeholder:"PATH" help:"File of age recipients to encrypt backups to."`
	SpoolLimit   Bytes          `name:"backup-spool-limit" group:"Backups" default:"1Gi" help:"Hold at most this much on the volume while the store is unreachable."`
}

// The minimum values of flags. Markers are written at most every minInterval, and a segment must fit into the spool.
const (
	minInterval = 100 * time.Millisecond // does not apply if clients wait for the store
	maxInterval = time.Hour
	minSpool    = Bytes(32 << 20)
)

// AckStored is the value of --backup-ack that makes clients wait until the store has their writes.
const AckStored = "stored"

// validateFor checks the flags and sets the default of the interval. The error names the flag. A flag that has no
// effect is an error.
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
		return errors.New("--backup-store: only with --standalone; otherwise the sidecar owns backups")
	case f.Ack == AckStored && f.Store == "":
		return errors.New("--backup-ack=stored: only with --backup-store")
	case *f.Interval < shortest || *f.Interval > maxInterval:
		return fmt.Errorf("--backup-interval: %v is not between %v and %v", *f.Interval, shortest, maxInterval)
	case f.SpoolLimit < minSpool:
		return fmt.Errorf("--backup-spool-limit: %v is less than the minimum, %v", f.SpoolLimit, minSpool)
	}
	for flag, path := range map[string]string{
		"--backup-recipients": f.Recipients, "--backup-identities": f.Identities,
		"--backup-signing-key": f.SigningKey, "--backup-trusted-keys": f.TrustedKeys,
	} {
		if path != "" && f.Store == "" {
			return fmt.Errorf("%s: only with --backup-store", flag)
		}
	}
	return nil
}
